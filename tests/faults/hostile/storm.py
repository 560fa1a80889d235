"""So many hostile requests beside the neighbours, and the report: answers by kind, what was wrong, gaps between tokens,
memory, counters.

python -m faults.hostile.storm [--variants 10] [--at-once 4] [--only WORD]     from the folder tests
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from faults.hostile import KINDS
from faults.hostile.client import HOST, Attempt, Kind, judge, send
from faults.hostile.neighbours import Neighbours
from tailrace.config import ModelConfig
from tailrace.models import resolve

VARIANTS = 10  # that each kind has at least
Numbered = tuple[Kind, int]
START_TIMEOUT_S = 300.0
IDLE_TIMEOUT_S = 300.0
PEACE_S = 3.0
SETTLE_S = 8
# gauges that are 0 where nobody is served
HELD = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_ratio",
    "num_slots_used",
    "num_requests_open",
    "num_aborts_unacknowledged",
)


@dataclass
class Server:
    """A running server: its port, and its processes."""

    port: int
    process: subprocess.Popen[bytes]

    def engines(self) -> list[int]:
        """The process of the engine; none if it has ended."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if "engine.process" in Path(f"/proc/{child}/cmdline").read_text()]

    def memory_mib(self) -> dict[str, float]:
        """What the front end and the engine hold."""
        pids = {"front end": self.process.pid, "engine": self.engines()[0]}
        pages = {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for name, pid in pids.items()}
        return {name: count * os.sysconf("SC_PAGE_SIZE") / 2**20 for name, count in pages.items()}

    def settled_mib(self) -> dict[str, float]:
        """The same once nobody asks for anything: the least of some seconds, in which allocators give back."""
        seen: list[dict[str, float]] = []
        for _ in range(SETTLE_S):
            time.sleep(1)
            seen.append(self.memory_mib())
        return {name: min(one[name] for one in seen) for name in seen[0]}

    def get(self, path: str) -> str:
        """The body of an answer with 200."""
        with urllib.request.urlopen(f"http://{HOST}:{self.port}{path}", timeout=300) as answer:
            return answer.read().decode()

    def metrics(self) -> dict[str, float]:
        """All samples, by name and labels as they are written."""
        lines = self.get("/metrics").splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def idle(self) -> dict[str, float]:
        """All metrics, once nothing is held any more.

        Raises:
            AssertionError: something is.
        """
        until = time.monotonic() + IDLE_TIMEOUT_S
        while True:
            metrics = self.metrics()
            held = {name: metrics[f"tailrace_{name}"] for name in HELD}
            if not any(held.values()):
                return metrics
            assert time.monotonic() < until, f"something is left: {held}"
            time.sleep(0.1)


@contextmanager
def serving(port: int, *flags: str, model: str | None = None) -> Iterator[Server]:
    """A whole server. model: None is scripted logits, which cost next to nothing, with the default model's
    tokenizer."""
    folder = resolve(ModelConfig(), progress=False).folder
    command = [
        sys.executable,
        "-m",
        "tailrace.cli",
        "serve",
        "--log-level",
        "error",
        "--host",
        HOST,
        "--port",
        str(port),
        "--model",
        model or f"scripted:spread:2@{folder}",
        "--served-model-name",
        "scripted",
        "--tool-parser",
        "hermes",
        "--num-blocks",
        "8192",
        "--threads",
        "1",
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    server = Server(port, process)
    try:
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                server.get("/health")
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < until, "the server did not come up"
                time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass
class Report:
    """What came of it all."""

    answers: dict[str, Counter[str]] = field(default_factory=dict)  # kind → how often which status
    wrong: list[str] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)  # kind → seconds
    windows: list[tuple[str, float, float]] = field(default_factory=list)  # (kind, from, to) by time.monotonic()

    def note(self, kind: Kind, number: int, found: list[str], status: int, begun: float) -> None:
        """One answer more."""
        now = time.monotonic()
        self.answers.setdefault(kind.name, Counter())["hung" if found and "no answer" in found[0] else str(status)] += 1
        self.slowest[kind.name] = max(self.slowest.get(kind.name, 0.0), now - begun)
        self.windows.append((kind.name, begun, now))
        wrong = [f"{kind.name} [{number}]: {what}" for what in found]
        self.wrong += wrong
        for line in wrong:  # at once: what comes later may never end
            print("WRONG", line, file=sys.stderr, flush=True)


def variants_of(kinds: Sequence[Kind], count: int) -> list[Numbered]:
    """So many of each kind, beginning at another one for each, in an order that chance makes."""
    found = [(kind, (place + i) % VARIANTS) for place, kind in enumerate(kinds) for i in range(count)]
    Random(5).shuffle(found)
    return found


async def storm(port: int, attempts: Sequence[Numbered], at_once: int, report: Report) -> None:
    """All of them, so many at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(kind: Kind, number: int) -> None:
        async with gate:
            attempt: Attempt = await asyncio.to_thread(kind.make, Random(f"{kind.name} {number}"), number)
            begun = time.monotonic()
            try:
                answer = await send(port, attempt, kind.limit_s)
            except OSError as error:  # nobody listens any more
                report.note(kind, number, [f"no connection: {error}"], 0, begun)
                return
            report.note(kind, number, judge(kind, attempt, answer), answer.status, begun)

    await asyncio.gather(*(one(kind, number) for kind, number in attempts))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def in_ms(values: Sequence[float]) -> dict[str, float]:
    """Percentiles."""
    return {
        name: round(percentile(values, p) * 1e3, 1)
        for name, p in (("p50", 50), ("p99", 99), ("p99.9", 99.9), ("worst", 100))
    }


def run(server: Server, kinds: Sequence[Kind], variants: int, at_once: int, warm_up: bool = True) -> dict[str, Any]:
    """Peace, a storm to warm up, the storm; then everything that can be said of it. The record is what the test asserts
    on.

    Args:
        variants: requests of each kind. warm_up: send as many before memory is looked at for the first time, so that
            caches are full.
    """
    report, warm = Report(), Report()
    engine = server.engines()[0]
    with Neighbours(server.port) as neighbours:
        calm = time.monotonic()
        time.sleep(PEACE_S)
        begun = time.monotonic()
        if warm_up:
            asyncio.run(storm(server.port, variants_of(kinds, variants), at_once, warm))
        before = server.settled_mib()
        asyncio.run(storm(server.port, variants_of(kinds, variants), at_once, report))
        ended = time.monotonic()
        told = neighbours.report()
    metrics = server.idle()
    after = server.settled_mib()
    gaps, health, probes = told["gaps"], told["health"], told["probes"]
    return {
        "requests": sum(sum(c.values()) for c in report.answers.values()),
        "kinds": len(kinds),
        "seconds": round(ended - begun, 1),
        "answers": {name: dict(count) for name, count in sorted(report.answers.items())},
        "statuses": dict(sum(report.answers.values(), Counter[str]())),
        "wrong": warm.wrong + report.wrong,
        "slowest_s": {name: round(s, 2) for name, s in sorted(report.slowest.items(), key=lambda item: -item[1])[:15]},
        "rounds": told["rounds"],
        "differences": told["differences"],
        "gaps_in_peace_ms": in_ms([gap for at, gap in gaps if calm < at <= begun]),
        "gaps_in_the_storm_ms": in_ms([gap for at, gap in gaps if begun < at <= ended]),
        "probes_in_peace_ms": {
            name: in_ms([s for at, s in took if calm < at <= begun]) for name, took in probes.items()
        },
        "probes_in_the_storm_ms": {name: in_ms([s for at, s in took if begun < at]) for name, took in probes.items()},
        "health_ms": in_ms([took for _, took in health if took >= 0]),
        "health_failed": sum(took < 0 for _, took in health),
        "memory_before_mib": {name: round(mib) for name, mib in before.items()},
        "memory_after_mib": {name: round(mib) for name, mib in after.items()},
        "same_engine": server.engines() == [engine],
        "bad_rows": {
            name: value for name, value in metrics.items() if name.startswith("tailrace_bad_logits_rows_total")
        },
        "failed": {name: value for name, value in metrics.items() if name.startswith("tailrace_request_failed_total")},
    }


def main() -> int:
    """Run it and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--variants", type=int, default=7, help="requests of each kind (7: more than a thousand in all)"
    )
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument("--port", type=int, default=18_555)
    parser.add_argument("--model", help="a real one instead of scripted logits")
    parser.add_argument("--no-warm-up", action="store_true")
    args = parser.parse_args()
    kinds = [kind for kind in KINDS if args.only in kind.name]
    with serving(args.port, model=args.model) as server:
        record = run(server, kinds, args.variants, args.at_once, not args.no_warm_up)
    wrong, differences = record.pop("wrong"), record.pop("differences")
    print(json.dumps(record, indent=1, ensure_ascii=False))
    for one in differences[:10]:
        print("DIFFERENT", json.dumps(one)[:1500])
    return int(bool(wrong or differences))


if __name__ == "__main__":
    sys.exit(main())
