"""A server's throughput and latencies over real HTTP streaming, against a plain transformers loop in the same run.

The same prompts (distinct windows of real text, the same ids for both sides) and as many output tokens. Server and
baseline never run at the same time; they take turns for several rounds. The client is a process of its own.
Ratios are ours / baseline for throughput and baseline / ours for latencies: above 1 we are better.
"""

from __future__ import annotations

import argparse
import contextlib
import pydoc_data.topics
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bench.harness import ROOT, Worker, cores, machine, percentile, table, write_json

from tailrace.config import ModelConfig
from tailrace.models import LocalModel, resolve
from tailrace.text.tokenizer import Tokenizer

HOST = "127.0.0.1"
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
GOALS = {1: 1.0, 8: 1.2, 32: 1.6}  # greedy throughput, ours / baseline
REQUESTS_AT_LEAST = 4  # per round, so that one stream is measured as long as many
WARM_UP_TOKENS = 8
START_TIMEOUT_S = 300.0
REST_S = 0.1


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="tailrace bench serve", description=__doc__)
    parser.add_argument("--device", help="bench/serve_device.py instead: overlap on and off, greedy and sampled")
    parser.add_argument(
        "--arrivals", help="bench/serve_arrivals.py instead: mixed lengths, requests that arrive at given rates"
    )
    parser.add_argument("--json", type=Path, help="write the results here too")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="concurrent streams")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2, help="turns that server and baseline take")
    parser.add_argument("--sampled", action="store_true", help="also temperature 0.8, top_p 0.95")
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--threads", type=int, default=cores(), help="for arithmetic, on both sides")
    parser.add_argument("--server-args", default="", help="further flags for tailrace serve, in one string")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write. Exit code 0 whatever the ratios are: a benchmark reports, a person judges."""
    if any(word.split("=")[0] == "--device" for word in argv or sys.argv[1:]):
        from bench import serve_device

        return serve_device.main(argv)
    if any(word.split("=")[0] == "--arrivals" for word in argv or sys.argv[1:]):
        from bench import serve_arrivals

        return serve_arrivals.main(argv)
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    modes = {"greedy": GREEDY, **({"sampled": SAMPLED} if args.sampled else {})}
    prompts = Prompts(Tokenizer.load(local.folder), args.prompt_tokens)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(args, local))
        client = stack.enter_context(Worker("bench.load", threads=1))
        plain = stack.enter_context(Worker("bench.plain", threads=args.threads))
        about = plain.ask({"folder": str(local.folder), "dtype": args.dtype, "threads": args.threads})
        sides = {"tailrace": (client, {"host": HOST, "port": server["port"]}), "transformers": (plain, {})}
        results = [measure(sides, prompts, args, mode, modes[mode], n) for mode in modes for n in args.streams]
    record = {
        "machine": {**machine(), "threads": args.threads},
        "model": local.name,
        "dtype": args.dtype,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "rounds": args.rounds,
        "start_up_s": server["start_up_s"],
        "baseline": f"transformers forward loop, DynamicCache, {about['attention']} attention, static batch",
        "results": results,
    }
    report(record)
    if args.json:
        write_json(args.json, record)
    return 0


class Prompts:
    """Windows of real text, each handed out once: no prefix is ever shared. The text is gone through again, one token further on."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        text = "\n\n".join(pydoc_data.topics.topics.values())
        ids = tokenizer.encode(text, add_special_tokens=False)
        self.windows = (
            ids[start : start + length] for first in range(length) for start in range(first, len(ids) - length, length)
        )

    def take(self, count: int) -> list[list[int]]:
        """The next windows.

        Raises:
            ValueError: there are no more.
        """
        if len(taken := list(islice(self.windows, count))) < count:
            raise ValueError("the text is not long enough: ask for fewer rounds or streams")
        return taken


@contextlib.contextmanager
def serving(args: argparse.Namespace, local: LocalModel) -> Iterator[dict[str, Any]]:
    """`tailrace serve` on a free port, and how long it took from its start until it was ready, from a warm cache."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tailrace.cli",
        "serve",
        "--log-level",
        "warning",
        "--host",
        HOST,
        "--port",
        str(port),
        "--model",
        str(local.folder),
        "--served-model-name",
        local.name,
        "--dtype",
        args.dtype,
        "--threads",
        str(args.threads),
        *args.server_args.split(),
    ]
    start = time.perf_counter()
    with running(command, port):
        yield {"port": port, "start_up_s": time.perf_counter() - start}


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, once it is ready; it ends with the block.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    start, name = time.perf_counter(), " ".join(command[2:4])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        while not is_ready(port):
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with code {process.returncode}")
            if time.perf_counter() - start > START_TIMEOUT_S:
                raise RuntimeError(f"{name} was not ready within {START_TIMEOUT_S:g} s")
            time.sleep(0.02)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
    """The server answers /health with 200."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=1) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def counters(port: int) -> dict[str, float]:
    """All metrics of a server that nobody asks anything, by their names with labels, without "tailrace_". The engine says how it is when
    it has nothing to do any more, which is a moment after the last answer.

    Raises:
        RuntimeError: it has not come to rest.
    """
    for _ in range(200):
        time.sleep(REST_S)
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        parted = (text.rpartition(" ") for text in lines if text.startswith("tailrace_"))
        found = {name.removeprefix("tailrace_"): float(value) for name, _, value in parted}
        if not found["num_requests_running"] and not found["num_requests_waiting"]:
            return found
    raise RuntimeError("the server does not come to rest")


def change(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What was counted between the two."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def measure(
    sides: dict[str, tuple[Worker, dict[str, Any]]],
    prompts: Prompts,
    args: argparse.Namespace,
    mode: str,
    sampling: dict[str, Any],
    streams: int,
) -> dict[str, Any]:
    """One line of the table: both sides, in turns."""
    count = streams * -(-REQUESTS_AT_LEAST // streams)
    common = {"streams": streams, "sampling": sampling}
    for worker, own in sides.values():
        worker.ask({**common, **own, "output_tokens": WARM_UP_TOKENS, "prompts": prompts.take(streams)})
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for turn in range(args.rounds):
        question = {**common, "output_tokens": args.output_tokens, "prompts": prompts.take(count)}
        for side in sorted(sides, reverse=turn % 2 == 1):  # who goes first alternates
            worker, own = sides[side]
            answers[side].append(worker.ask({**question, **own}))
    print(f"measured: {mode}, {streams} streams", file=sys.stderr, flush=True)
    return {"mode": mode, "streams": streams, **{side: summary(answers[side]) for side in sides}}


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Throughput per round, and latencies of all rounds together. Gaps are between events with text, and nearly all of
    those hold one token."""
    requests = [request for answer in rounds for request in answer["requests"]]
    gaps = [b - a for request in requests for a, b in zip(request["arrivals"], request["arrivals"][1:], strict=False)]
    first = [request["arrivals"][0] for request in requests]
    rates = [answer["tokens"] / answer["wall_s"] for answer in rounds]
    return {
        "tokens_per_s": statistics.median(rates),
        "tokens_per_s_rounds": rates,
        "ttft_ms": {"p50": percentile(first, 50) * 1e3, "p95": percentile(first, 95) * 1e3},
        "itl_ms": {"p50": percentile(gaps, 50) * 1e3, "p99": percentile(gaps, 99) * 1e3},
    }


def report(record: dict[str, Any]) -> None:
    """The table for people."""
    about = record["machine"]
    print(f"{about['cpu']}, {about['cores']} cores, {about['threads']} threads, torch {about['torch']}")
    sizes = f"{record['prompt_tokens']} prompt and {record['output_tokens']} output tokens"
    print(f"{record['model']} in {record['dtype']}: {sizes}")
    print(f"baseline: {record['baseline']}; {record['rounds']} rounds in turns")
    print(f"start-up, from the command to ready: {record['start_up_s']:.1f} s (goal: under 10)\n")
    rows = []
    for result in record["results"]:
        ours, plain = result["tailrace"], result["transformers"]
        goal = GOALS.get(result["streams"]) if result["mode"] == "greedy" else None
        rows.append(
            {
                "mode": result["mode"],
                "streams": result["streams"],
                "tok/s": ours["tokens_per_s"],
                "plain": plain["tokens_per_s"],
                "ratio": ours["tokens_per_s"] / plain["tokens_per_s"],
                "goal": goal or "-",
                "TTFT p50 ms": ours["ttft_ms"]["p50"],
                "p95": ours["ttft_ms"]["p95"],
                "plain p50": plain["ttft_ms"]["p50"],
                "ITL p50 ms": ours["itl_ms"]["p50"],
                "p99": ours["itl_ms"]["p99"],
                "plain ITL": plain["itl_ms"]["p50"],
            }
        )
    print(table(rows))


if __name__ == "__main__":
    sys.exit(main())
