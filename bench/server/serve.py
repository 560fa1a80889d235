"""Measure a server's throughput and latencies over HTTP streaming, against a plain transformers loop in the same run.

Both sides get the same prompts (distinct windows of real text) and the same number of output tokens. They never run at
the same time, but take turns for several rounds. The client is a process of its own. Ratios are ours / baseline for
throughput and baseline / ours for latencies: above 1 we are better.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from bench.lib.harness import Worker, machine, table, write_json
from bench.lib.server import GREEDY, HOST, SAMPLED, WARM_UP_TOKENS, Prompts, add_server_flags, serving, summary
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.text.tokenizer import Tokenizer

GOALS = {1: 1.0, 8: 1.2, 32: 1.6}  # greedy throughput, ours / baseline
REQUESTS_AT_LEAST = 4  # per round, so that one stream is measured as long as many


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__)
    parser.add_argument("--device", help="serve_device.py instead: overlap on and off, greedy and sampled")
    parser.add_argument(
        "--arrivals", help="serve_arrivals.py instead: mixed lengths, requests that arrive at given rates"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="concurrent streams")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2, help="turns that server and baseline take")
    parser.add_argument("--sampled", action="store_true", help="also temperature 0.8, top_p 0.95")
    add_server_flags(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write. Exit code 0 whatever the ratios are: a benchmark reports, a person judges."""
    if any(word.split("=")[0] == "--device" for word in argv or sys.argv[1:]):
        from bench.server import serve_device

        return serve_device.run(argv)
    if any(word.split("=")[0] == "--arrivals" for word in argv or sys.argv[1:]):
        from bench.server import serve_arrivals

        return serve_arrivals.run(argv)
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    modes = {"greedy": GREEDY, **({"sampled": SAMPLED} if args.sampled else {})}
    prompts = Prompts(Tokenizer.load(local.folder), args.prompt_tokens)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(args, local))
        client = stack.enter_context(Worker("bench.lib.load", threads=1))
        plain = stack.enter_context(Worker("bench.server.plain", threads=args.threads))
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


def measure(
    sides: dict[str, tuple[Worker, dict[str, Any]]],
    prompts: Prompts,
    args: argparse.Namespace,
    mode: str,
    sampling: dict[str, Any],
    streams: int,
) -> dict[str, Any]:
    """One row of the table: both sides, in turns."""
    count = streams * -(-REQUESTS_AT_LEAST // streams)
    common = {"streams": streams, "sampling": sampling}
    for worker, own in sides.values():
        worker.ask({**common, **own, "output_tokens": WARM_UP_TOKENS, "prompts": prompts.take(streams)})
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for turn in range(args.rounds):
        question = {**common, "output_tokens": args.output_tokens, "prompts": prompts.take(count)}
        for side in sorted(sides, reverse=turn % 2 == 1):  # alternates which side goes first
            worker, own = sides[side]
            answers[side].append(worker.ask({**question, **own}))
    print(f"measured: {mode}, {streams} streams", file=sys.stderr, flush=True)
    return {"mode": mode, "streams": streams, **{side: summary(answers[side]) for side in sides}}


def report(record: dict[str, Any]) -> None:
    """Print the table."""
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
