"""A server under mixed load: prompts and answers of different lengths. Either a fixed number runs at a time (closed
loop), or requests arrive at given rates whatever the server does (Poisson arrivals, open loop). The engine's own
counters tell which share of its time the forward pass took.

The same seed gives the same lengths and the same arrivals, scaled by the rate. Times to first tokens count from when a
request was due. Rates above the throughput of the closed loop can't be kept up: the queue grows for as long as the run
lasts.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pydoc_data.topics
import random
import sys
from typing import Any

from bench.lib.harness import Worker, machine, percentile, table, write_json
from bench.lib.server import GREEDY, HOST, SAMPLED, add_server_flags, change, counters, serving, summary
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.text.tokenizer import Tokenizer


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve --arrivals", description=__doc__)
    parser.add_argument("--arrivals", type=float, nargs="+", required=True, metavar="RATE", help="requests per second")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32], help="of the closed loops")
    parser.add_argument("--requests", type=int, default=48, help="of a round")
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=[16, 512], metavar=("LOW", "HIGH"))
    parser.add_argument("--output-tokens", type=int, nargs=2, default=[16, 256], metavar=("LOW", "HIGH"))
    parser.add_argument("--rounds", type=int, default=2, help="turns that the loads take")
    parser.add_argument("--seed", type=int, default=0, help="of lengths and arrivals")
    parser.add_argument("--sampled", action="store_true", help="temperature 0.8, top_p 0.95; else greedy")
    add_server_flags(parser)
    args = parser.parse_args(argv)
    for name in ("prompt_tokens", "output_tokens"):
        low, high = getattr(args, name)
        if not 1 <= low <= high:
            parser.error(f"--{name.replace('_', '-')} must be 1 <= LOW <= HIGH, got {low} {high}")
    if not all(rate > 0 and math.isfinite(rate) for rate in args.arrivals):
        parser.error("--arrivals must be above 0")
    if min(args.requests, args.rounds, *args.streams) < 1:
        parser.error("--requests, --rounds and --streams must be at least 1")
    return args


def drawn(rng: random.Random, low: int, high: int) -> int:
    """A length whose logarithm is uniform: short ones are frequent, long ones have most of the tokens."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


class Load:
    """Requests of different lengths. Prompts are consecutive pieces of real text, so that no two share a prefix."""

    def __init__(self, ids: list[int], args: argparse.Namespace) -> None:
        self.ids, self.args, self.start = ids, args, 0

    def requests(self, turn: int) -> list[dict[str, Any]]:
        """The requests of one round: prompt, output_tokens, at. at: the arrival time at a rate of one per second. The
        same turn always has the same lengths and arrivals, but other prompts.

        Raises:
            ValueError: no text is left.
        """
        rng, at, found = random.Random(f"{self.args.seed} {turn}"), 0.0, []
        for _ in range(self.args.requests):
            prompt = self._piece(drawn(rng, *self.args.prompt_tokens))
            found.append({"prompt": prompt, "output_tokens": drawn(rng, *self.args.output_tokens), "at": at})
            at += rng.expovariate(1.0)
        return found

    def _piece(self, count: int) -> list[int]:
        self.start += count
        if self.start > len(self.ids):
            raise ValueError("the text is not long enough: ask for fewer or shorter requests, rounds or loads")
        return self.ids[self.start - count : self.start]


def measure(client: Worker, port: int, load: Load, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Per load, its answers and the engine's counters, in turns."""
    loads: list[dict[str, Any]] = [{"streams": streams} for streams in args.streams]
    loads += [{"rate": rate} for rate in args.arrivals]
    answers: list[list[dict[str, Any]]] = [[] for _ in loads]
    counts: list[list[dict[str, float]]] = [[] for _ in loads]
    common = {"host": HOST, "port": port, "sampling": SAMPLED if args.sampled else GREEDY}
    client.ask({**common, "streams": 4, "requests": load.requests(-1)[:4]})  # warms up
    for turn in range(args.rounds):
        for place in sorted(range(len(loads)), reverse=turn % 2 == 1):
            each = loads[place]
            requests = load.requests(turn)
            for request in requests:
                request["at"] /= each.get("rate", 1.0)
            before = counters(port)
            answers[place].append(client.ask({**common, "streams": each.get("streams"), "requests": requests}))
            counts[place].append(change(before, counters(port)))
            print(f"measured: {name(each)}, round {turn + 1}", file=sys.stderr, flush=True)
    return [{**each, **described(mine, counted)} for each, mine, counted in zip(loads, answers, counts, strict=True)]


def name(load: dict[str, Any]) -> str:
    """The load's name."""
    return f"{load['streams']} streams" if "streams" in load else f"{load['rate']:g} per s"


def described(answers: list[dict[str, Any]], counts: list[dict[str, float]]) -> dict[str, Any]:
    """Throughput, latencies, and where the engine's time went."""
    wall_s = sum(answer["wall_s"] for answer in answers)
    return {
        **summary(answers),
        "requests_per_s": sum(len(answer["requests"]) for answer in answers) / wall_s,
        "whole_ms": {"p50": percentile([r["end"] for answer in answers for r in answer["requests"]], 50) * 1e3},
        **shares(counts, wall_s),
    }


def shares(counts: list[dict[str, float]], wall_s: float) -> dict[str, float]:
    """Shares of the engine's time. busy: in which it did anything; model: the part of that in the forward pass."""
    busy_s, forward_s = (
        sum(count.get(key, 0.0) for count in counts)
        for key in ("engine_turn_duration_seconds_sum", 'engine_step_seconds_total{part="forward"}')
    )
    return {"busy": busy_s / wall_s, "model": forward_s / busy_s if busy_s else math.nan}


def run(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    ids = Tokenizer.load(local.folder).encode("\n\n".join(pydoc_data.topics.topics.values()), add_special_tokens=False)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(args, local))
        client = stack.enter_context(Worker("bench.lib.load", threads=1))
        results = measure(client, server["port"], Load(ids, args), args)
    record = {
        "machine": {**machine(), "threads": args.threads},
        "model": local.name,
        "dtype": args.dtype,
        "requests": args.requests,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "rounds": args.rounds,
        "seed": args.seed,
        "results": results,
    }
    report(record)
    if args.json:
        write_json(args.json, record)
    return 0


def report(record: dict[str, Any]) -> None:
    """Print the table."""
    about, (low, high), (least, most) = record["machine"], record["prompt_tokens"], record["output_tokens"]
    print(f"{about['cpu']}, {about['cores']} cores, {about['threads']} threads, torch {about['torch']}")
    lengths = f"{low} to {high} prompt and {least} to {most} output tokens, their logarithms uniform"
    print(
        f"{record['model']} in {record['dtype']}: {lengths}; {record['requests']} requests, "
        f"{record['rounds']} rounds in turns"
    )
    print(
        "of closed: tokens/s against the closed loop with most streams; "
        "busy: of the engine's time; model: of its busy time\n"
    )
    closed = [result for result in record["results"] if "streams" in result]
    most = max(closed, key=lambda result: result["streams"])["tokens_per_s"] if closed else math.nan
    rows = [
        {
            "load": name(result),
            "requests/s": result["requests_per_s"],
            "tok/s": result["tokens_per_s"],
            "of closed": result["tokens_per_s"] / most,
            "TTFT p50 ms": result["ttft_ms"]["p50"],
            "p95": result["ttft_ms"]["p95"],
            "ITL p50 ms": result["itl_ms"]["p50"],
            "p99": result["itl_ms"]["p99"],
            "whole p50 ms": result["whole_ms"]["p50"],
            "busy": result["busy"],
            "model": result["model"],
        }
        for result in record["results"]
    ]
    print(table(rows))
