"""Measure what the worst known requests cost other streams: the longest turn of the engine's thread, the longest delay
of the front end's event loop, and the longest gap between tokens. All are compared with an undisturbed phase of the
same run.

The inputs are data (tests/faults/hostile), the same that the tests send. Logits are scripted by default, so that a
request's own work (its prompt, its tokens) costs next to nothing. `--model` uses a real model. One hostile request runs
at a time. The first two columns come from /metrics, as an operator would see them: upper edges of histogram buckets.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from bench.lib.harness import ROOT, machine, percentile, table, write_json

if TYPE_CHECKING:
    from faults.hostile.client import Kind
    from faults.hostile.storm import Server

TURN, LAG = "tailrace_engine_turn_duration_seconds_bucket", "tailrace_event_loop_lag_seconds_bucket"
PART = "tailrace_engine_step_duration_seconds_bucket"
SETTLE_S = 1.2  # the engine's counters may be a second old


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.abuse", description=__doc__)
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument("--variants", type=int, default=1, help="requests of each kind")
    parser.add_argument("--peace-s", type=float, default=10.0, help="how long the neighbours are looked at alone")
    parser.add_argument("--model", help="a model instead of scripted logits")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    sys.path.insert(0, str(ROOT / "tests"))
    from faults.hostile import KINDS
    from faults.hostile.neighbours import Neighbours
    from faults.hostile.storm import serving

    kinds = [kind for kind in KINDS if args.only in kind.name]
    with serving(free_port(), model=args.model) as server, Neighbours(server.port) as neighbours:
        calm = time.monotonic()
        before = server.metrics()
        time.sleep(args.peace_s)
        peace = {"worst step": grown(before, server.metrics(), TURN), "from": calm, "to": time.monotonic()}
        found = [measure(server, kind, args.variants) for kind in kinds]
        told = neighbours.report()
    quiet = in_window(told["gaps"], peace["from"], peace["to"])
    rows = [row(line, told, max(quiet, default=0.0)) for line in found]
    record = {
        "machine": machine(),
        "model": args.model or "scripted",
        "peace": {"p50_ms": percentile(quiet, 50) * 1e3, "worst_ms": max(quiet, default=0.0) * 1e3, **peace},
        "differences": told["differences"],
        "results": rows,
    }
    report(record)
    if args.json:
        write_json(args.json, record)
    return 0


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(server: Server, kind: Kind, variants: int) -> dict[str, Any]:
    """One kind of input: what the server's own histograms say about the time in which it was sent."""
    from faults.hostile.client import judge, send

    attempts = [kind.make(Random(f"{kind.name} {number}"), number) for number in range(variants)]
    before, begun = server.metrics(), time.monotonic()
    wrong: list[str] = []
    statuses: list[int] = []
    for attempt in attempts:
        answer = asyncio.run(send(server.port, attempt, kind.limit_s))
        wrong += judge(kind, attempt, answer)
        statuses.append(answer.status)
    took = time.monotonic() - begun
    time.sleep(SETTLE_S)
    after = server.metrics()
    print(f"measured: {kind.name}", file=sys.stderr, flush=True)
    return {
        "kind": kind,
        "from": begun,
        "to": time.monotonic(),
        "took": took,
        "statuses": sorted(set(statuses)),
        "wrong": wrong,
        "step": grown(before, after, TURN),
        "part": slowest_part(before, after),
        "loop": grown(before, after, LAG),
    }


def grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """The upper edge of the largest bucket that has grown, in seconds; 0 if none has."""
    edges: list[tuple[float, float]] = []
    for sample, count in after.items():
        if sample.startswith(name + "{") and 'le="' in sample:
            edge = float(sample.split('le="')[1].split('"')[0])
            edges.append((edge, count - before.get(sample, 0.0)))
    edges.sort()
    below, worst = 0.0, 0.0
    for edge, count in edges:  # buckets are cumulative
        if count > below:
            below, worst = count, edge
    return worst


def slowest_part(before: dict[str, float], after: dict[str, float]) -> str:
    """The part of the step that took longest."""
    parts = {sample.split('part="')[1].split('"')[0] for sample in after if sample.startswith(PART)}
    worst: dict[str, float] = {}
    for part in parts:
        mine = {k: v for k, v in after.items() if f'part="{part}"' in k}
        worst[part] = grown({k: v for k, v in before.items() if k in mine}, mine, PART)
    return max(worst, key=lambda part: worst[part], default="-")


def in_window(noted: Sequence[Sequence[float]], begun: float, ended: float) -> list[float]:
    """The values noted in this window."""
    return [value for at, value in noted if begun < at <= ended]


def row(line: dict[str, Any], told: dict[str, Any], peace: float) -> dict[str, Any]:
    """A line of the table, in milliseconds."""
    kind = line["kind"]
    gap = max(in_window(told["gaps"], line["from"], line["to"]), default=0.0)
    health = max(in_window(told["health"], line["from"], line["to"]), default=0.0)
    beyond = max(0.0, gap - peace) * 1e3
    return {
        "input": kind.name,
        "answers": ",".join(map(str, line["statuses"])),
        "took ms": line["took"] * 1e3,
        "step ≤": line["step"] * 1e3,
        "mostly": line["part"],
        "loop ≤": line["loop"] * 1e3,
        "/health": health * 1e3,
        "gap": gap * 1e3,
        "beyond peace": beyond,
        "bound": kind.bound_ms,
        "": "" if beyond <= kind.bound_ms and not line["wrong"] else "✗ " + "; ".join(line["wrong"])[:60],
    }


def report(record: dict[str, Any]) -> None:
    """Print the table, the worst first."""
    about, peace, rows = record["machine"], record["peace"], record["results"]
    print(f"{about['cpu']}, {about['cores']} cores; {record['model']}; all times in ms, the worst of each")
    print(f"neighbours in peace: {peace['p50_ms']:.1f} between tokens (p50), {peace['worst_ms']:.1f} at worst")
    print(f"answers of neighbours that differ from those in peace: {len(record['differences'])}\n")
    print(table(sorted(rows, key=lambda line: -line["beyond peace"])))
    within = sum(line["beyond peace"] <= line["bound"] for line in rows)
    print(f"\n{within} of {len(rows)} kinds within their bound")


if __name__ == "__main__":
    sys.exit(main())
