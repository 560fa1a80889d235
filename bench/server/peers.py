"""Compare tailrace's server with vLLM's on the same CPU, over HTTP and in turns: throughput and latencies, also while
prompts arrive beside streams that decode.

Both servers stay up; one is idle while the other works. The client is a process of its own. vLLM comes from the
environment that `make test-vllm` makes; its own sampler is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.lib.harness import ROOT, Worker, cores, machine, percentile, rest, table, write_json
from bench.lib.server import HOST, WARM_UP_TOKENS, Prompts, serving, summary
from bench.server import vllm
from bench.server.vllm import CASES
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.text.tokenizer import Tokenizer

Answers = dict[str, list[dict[str, Any]]]  # by side
ARRIVING_TOKENS = 16  # of the answer to a prompt that arrives beside streams
SETTLE_S = 3.0  # until the first arrives


class Steady(NamedTuple):
    """So many prompts arrive, `rate` per second, beside streams of so many tokens."""

    rate: float
    prompts: int
    stream_tokens: int


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python", help="of an environment with vLLM"
    )
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[50, 1000])
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--cases",
        nargs="+",
        default=["greedy", "top-p", "… + three penalties"],
        choices=list(CASES),
        help="of sampling",
    )
    parser.add_argument("--arrivals", type=float, nargs="*", default=[1.0], help="prompts per second, beside streams")
    parser.add_argument("--arriving", type=int, default=12, help="how many prompts arrive in a round")
    parser.add_argument("--stream-tokens", type=int, default=768, help="of the streams that these arrive beside")
    parser.add_argument("--server-args", default="", help="further flags for tailrace serve, in one string")
    parser.add_argument("--vllm-args", default="--enforce-eager", help="further flags for vllm serve, in one string")
    parser.add_argument("--json", type=Path, help="write the results here too")
    args = parser.parse_args(argv)
    args.threads = cores()
    return args


class Turns:
    """Asks both servers the same, in turns."""

    def __init__(self, client: Worker, ports: dict[str, int], rounds: int) -> None:
        self.client, self.ports, self.rounds = client, ports, rounds

    def ask(self, questions: list[dict[str, Any]]) -> Answers:
        """questions: one for each round."""
        answers: Answers = {side: [] for side in self.ports}
        for turn, question in enumerate(questions):
            for side in sorted(self.ports, reverse=turn % 2 == 1):
                rest()
                answers[side].append(self.client.ask({"host": HOST, "port": self.ports[side], **question}))
        return answers

    def closed(self, prompts: Prompts, case: str, streams: int, tokens: int) -> Answers:
        """So many streams at a time; all begin at once."""
        count = streams * -(-4 // streams)  # one stream is measured as long as four
        common = {"streams": streams, "sampling": CASES[case][0]}
        self.ask([{**common, "output_tokens": WARM_UP_TOKENS, "prompts": prompts.take(streams)}])
        return self.ask(
            [{**common, "output_tokens": tokens, "prompts": prompts.take(count)} for _ in range(self.rounds)]
        )

    def steady(self, streams: list[list[list[int]]], arriving: list[list[list[int]]], asked: Steady) -> Answers:
        """Streams that decode, and prompts that arrive beside them, evenly. Both: the prompts of each round."""
        questions = []
        for some, more in zip(streams, arriving, strict=True):
            requests = [{"prompt": each, "output_tokens": asked.stream_tokens, "at": 0.0} for each in some]
            requests += [
                {"prompt": each, "output_tokens": ARRIVING_TOKENS, "at": SETTLE_S + i / asked.rate}
                for i, each in enumerate(more)
            ]
            questions.append({"sampling": CASES["greedy"][0], "requests": requests})
        return self.ask(questions)


def row(name: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """A line of the first table. Ratios are of the rounds with themselves; above 1 tailrace is better."""
    own, theirs = summary(answers["tailrace"]), summary(answers["vLLM"])
    pairs = zip(own["tokens_per_s_rounds"], theirs["tokens_per_s_rounds"], strict=True)
    return {
        **name,
        "tok/s": own["tokens_per_s"],
        "vLLM": theirs["tokens_per_s"],
        "ratio": statistics.median(a / b for a, b in pairs),
        "TTFT p50 ms": own["ttft_ms"]["p50"],
        "vLLM ": theirs["ttft_ms"]["p50"],
        "ITL p50 ms": own["itl_ms"]["p50"],
        "p99": own["itl_ms"]["p99"],
        "vLLM p50": theirs["itl_ms"]["p50"],
        "vLLM p99": theirs["itl_ms"]["p99"],
    }


def steady_row(asked: Steady, side: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of the second table: the streams' gaps while prompts arrived, and the first tokens of these.

    Raises:
        RuntimeError: the streams had ended before the last prompt came.
    """
    requests = [request for answer in rounds for request in answer["requests"]]
    streams = [request["arrivals"] for request in requests if request["tokens"] == asked.stream_tokens]
    first = [request["arrivals"][0] for request in requests if request["tokens"] == ARRIVING_TOKENS]
    end = SETTLE_S + asked.prompts / asked.rate
    if min(times[-1] for times in streams) < end:
        raise RuntimeError(f"the streams of {side} ended before the last prompt came: raise --stream-tokens")
    gaps = [b - a for times in streams for a, b in pairwise(times) if SETTLE_S <= b <= end]
    middle, late = (percentile(gaps, percent) * 1e3 for percent in (50, 99))
    return {
        "arrivals/s": asked.rate,
        "server": side,
        "ITL p50 ms": middle,
        "p99": late,
        "p99 / p50": late / middle,
        "TTFT p50 ms": percentile(first, 50) * 1e3,
        "TTFT p99": percentile(first, 99) * 1e3,
    }


def measure(args: argparse.Namespace, turns: Turns, tokenizer: Tokenizer) -> dict[str, list[dict[str, Any]]]:
    """The rows of both tables."""
    texts = {length: Prompts(tokenizer, length) for length in args.prompt_tokens}
    closed: list[dict[str, Any]] = []
    for length, prompts in texts.items():
        for case in args.cases:
            for streams in args.streams:
                name = {"prompt": length, "sampling": case, "streams": streams}
                closed.append(row(name, turns.closed(prompts, case, streams, args.output_tokens)))
                print(f"measured: {name}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    short, long = texts[min(texts)], texts[max(texts)]
    steady: list[dict[str, Any]] = []
    for rate in args.arrivals:
        asked = Steady(rate, args.arriving, args.stream_tokens)
        streams = [short.take(max(args.streams)) for _ in range(args.rounds)]
        found = turns.steady(streams, [long.take(args.arriving) for _ in range(args.rounds)], asked)
        steady += [steady_row(asked, side, rounds) for side, rounds in found.items()]
        print(f"measured: {rate:g} arrivals per second", file=sys.stderr, flush=True)
    return {"closed": closed, "steady": steady}


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write. Exit code 0 whatever the ratios are, 2 where there is no vLLM."""
    args = arguments(argv)
    if not args.python.is_file():
        print(f"--python: {args.python} is not there; make test-vllm makes it", file=sys.stderr)
        return 2
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        places, context = max(args.streams) + args.arriving, max(args.prompt_tokens) + args.stream_tokens
        ports = {"vLLM": stack.enter_context(vllm.serving(args, local, "0", places, context))}
        ports["tailrace"] = stack.enter_context(serving(args, local))["port"]
        client = stack.enter_context(Worker("bench.lib.load", threads=1))
        results = measure(args, Turns(client, ports, args.rounds), Tokenizer.load(local.folder))
    about = machine()
    record = {
        "machine": about,
        "load": [before, os.getloadavg()[0]],
        "model": local.name,
        "dtype": args.dtype,
        **results,
    }
    print(f"{about['cpu']}, {about['cores']} cores, load {before:.1f} before, {record['load'][1]:.1f} after")
    print(f"{local.name}, {args.dtype}, {args.output_tokens} tokens per answer, {args.rounds} rounds in turns\n")
    print(table(results["closed"]))
    if results["steady"]:
        beside = f"{min(args.prompt_tokens)}-token prompts' streams, {max(args.streams)} of them"
        print(f"\nprompts of {max(args.prompt_tokens)} tokens that arrive beside {beside}:\n")
        print(table(results["steady"]))
    if args.json:
        write_json(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
