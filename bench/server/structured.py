"""Measure what grammars and guidance cost a server: the throughput of streams with them, and of the streams beside
them, against plain streams in the same run.

The grammar is a JSON schema that no answer completes, so that all answers have the same number of tokens. Forced text
makes some streams faster than others. So all are kept busy for a while, and the tokens that arrive in that time are
counted. Plain streams are measured before and after each mode. With `--no-ahead` the schema has next to no forced text,
so that only the masks are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.lib.harness import Worker, machine, table, write_json
from bench.lib.server import HOST, Prompts, add_server_flags, serving
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ENDLESS = {"type": "array", "minItems": 400, "items": PERSON}
WORDS = {"type": "array", "minItems": 2000, "items": {"type": "string", "minLength": 1, "maxLength": 400}}
WARM_UP_S = 1
MOST = 200  # the most tokens per second that one stream can get
PLAIN = {"temperature": 0.8, "top_p": 0.95, "seed": 1}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.structured", description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement, after --ramp-s")
    parser.add_argument("--ramp-s", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--no-ahead", action="store_true", help="a schema of long strings: hardly any text is without a choice"
    )
    add_server_flags(parser)
    return parser.parse_args(argv)


def modes(no_ahead: bool) -> dict[str, tuple[dict[str, Any], dict[str, Any], str]]:
    """Mode → (fields of the first half of the streams, of the second half, goal)."""
    schema = json.dumps(WORDS if no_ahead else ENDLESS)
    ruled = PLAIN | {"guided_json": schema}
    guided = PLAIN | {"guidance_scale": 1.5, "negative_prompt": "Nothing"}
    return {
        "a grammar on every stream": (ruled, ruled, "≥ 0.95"),
        "a grammar on every second": (ruled, PLAIN, "≥ 0.99 beside"),
        "guidance on every second": (guided, PLAIN, ""),
        "guidance on every stream": (guided, guided, "≥ 0.49"),
    }


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    prompts = Prompts(Tokenizer.load(local.folder), args.prompt_tokens)
    half = args.streams // 2
    each = half * (2 + int((args.ramp_s + args.seconds) * MOST / args.output_tokens))  # prompts of one half
    kinds = modes(args.no_ahead)
    shares: dict[str, list[tuple[float, float]]] = {mode: [] for mode in kinds}
    speeds: list[float] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(args, local))
        clients = [stack.enter_context(Worker("bench.lib.load", threads=1)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        request = {
            "host": HOST,
            "port": server["port"],
            "streams": half,
            "output_tokens": args.output_tokens,
            "ramp_s": args.ramp_s,
        }

        measure = partial(in_halves, clients, pool, request, lambda: prompts.take(each))
        for halves in ((PLAIN, PLAIN), *(kind[:2] for kind in kinds.values())):
            measure(halves, WARM_UP_S)
        before = measure((PLAIN, PLAIN), args.seconds)
        for turn in range(args.rounds):
            for mode in sorted(kinds, reverse=turn % 2 == 1):
                found = measure(kinds[mode][:2], args.seconds)
                after = measure((PLAIN, PLAIN), args.seconds)
                # the machine's speed drifts by the minute, so each measurement is compared with those right before and
                # after it
                plain = [(one + other) / 2 for one, other in zip(before, after, strict=True)]
                shares[mode].append((found[0] / plain[0], found[1] / plain[1]))
                speeds.append(sum(plain))
                before = after
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
    report(args, shares, speeds, kinds)
    return 0


def in_halves(
    clients: list[Worker],
    pool: ThreadPoolExecutor,
    request: dict[str, Any],
    prompts: Callable[[], list[list[int]]],
    halves: tuple[dict[str, Any], ...],
    seconds: float,
) -> tuple[float, float]:
    """Tokens per second of each half of the streams. halves: the fields of each half's requests."""
    asked = [{**request, "sampling": fields, "seconds": seconds, "prompts": prompts()} for fields in halves]
    first, second = pool.map(lambda pair: pair[0].ask(pair[1]), zip(clients, asked, strict=True))
    return first["tokens"] / seconds, second["tokens"] / seconds


def report(
    args: argparse.Namespace,
    shares: dict[str, list[tuple[float, float]]],
    speeds: list[float],
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any], str]],
) -> None:
    """Print the table, and write the results if asked."""
    results = [
        {
            "mode": mode,
            "goal": goal,
            "of plain": statistics.median((a + b) / 2 for a, b in shares[mode]),
            "first half": statistics.median(a for a, _ in shares[mode]),
            "second half": statistics.median(b for _, b in shares[mode]),
        }
        for mode, (_, _, goal) in kinds.items()
    ]
    about = machine()
    print(
        f"{about['cpu']}, {args.threads} threads, {args.dtype}, {args.streams} streams, {args.rounds} rounds in turns"
    )
    print(f"plain: {statistics.median(speeds):.0f} tokens/s")
    print(table(results))
    if args.json:
        write_json(
            args.json,
            {"machine": about, "streams": args.streams, "dtype": args.dtype, "plain": speeds, "results": results},
        )


if __name__ == "__main__":
    sys.exit(main())
