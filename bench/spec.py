"""Speculation: a server that guesses ahead against one that does not, in the same run and in turns, on text that repeats itself and on text
that does not.

Every answer ends where the model ends it, so that nothing is won by making it repeat itself for ever. Acceptance comes from the
server's own counters. Under the rule `exact` both servers say the same, token for token; the share of answers that are equal is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import pydoc_data.topics
import random
import statistics
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import Worker, cores, machine, table, write_json
from bench.serve import HOST, serving

from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.text.tokenizer import Tokenizer

GOALS = {"summary": 1.8, "code edit": 1.8, "JSON": 1.8, "free": 0.97}  # of n-gram at one stream
GREEDY = {"temperature": 0.0, "ignore_eos": False}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "ignore_eos": False}
SUBJECTS = (
    "a lighthouse keeper who finds a letter", "why the sea is salty", "a city that moves every night", "how bread is made",
    "two rival clockmakers", "the history of the bicycle", "a detective who can't remember faces", "what makes a good teacher",
    "a storm over the mountains", "how to learn a language", "an astronaut's garden", "the life of a river",
    "a museum of forgotten things", "why people keep diaries", "the last train home", "how bees find their way",
)  # fmt: skip


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="tailrace bench spec", description=__doc__)
    parser.add_argument(
        "--drafters", nargs="+", default=["ngram", "suffix", "early_exit"], help="as for tailrace serve"
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), help="of text")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument(
        "--requests", type=int, default=8, help="per kind of text and round, at least as many as streams"
    )
    parser.add_argument("--output-tokens", type=int, default=192, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=3, help="turns that the servers take")
    parser.add_argument("--max-drafts", type=int, default=8)
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--server-args", default="", help="further flags for tailrace serve, in one string")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args(argv)


# ---- prompts


def summaries(rng: random.Random) -> str:
    """A page of prose to be quoted from."""
    topic = rng.choice([text for text in pydoc_data.topics.topics.values() if 1500 < len(text) < 12000])
    page = topic[: topic.find("\n", 1400)]
    return f"{page}\n\nSummarize the text above in five sentences, quoting its own words."


def code_edits(rng: random.Random) -> str:
    """A function to be rewritten with one change."""
    functions = [f for _, f in inspect.getmembers(textwrap, inspect.isfunction)]
    functions += [f for _, f in inspect.getmembers(statistics, inspect.isfunction)]
    sources = [inspect.getsource(f) for f in functions]
    source = rng.choice([source for source in sources if 500 < len(source) < 1800])
    return f"```python\n{source}```\n\nRepeat this code, with every argument's name in capital letters. Answer with the code alone."


def records(rng: random.Random) -> str:
    """Records to be rewritten with one more field."""
    names = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Leslie", "Tony", "Frances", "Niklaus"]
    rows = [
        {"id": rng.randrange(1000, 9999), "name": rng.choice(names), "city": rng.choice(["Zürich", "Oslo", "Turin"]),
         "balance": rng.randrange(10_000) / 100, "active": rng.random() < 0.5}
        for _ in range(8)
    ]  # fmt: skip
    return f'{json.dumps(rows, indent=1, ensure_ascii=False)}\n\nRepeat this JSON with "currency": "EUR" added to every record.'


def free(rng: random.Random) -> str:
    """A subject to write about."""
    return f"Write about {rng.choice(SUBJECTS)}. Take number {rng.randrange(1000)} into account."


KINDS: dict[str, tuple[Callable[[random.Random], str], dict[str, Any]]] = {
    "summary": (summaries, GREEDY),
    "code edit": (code_edits, GREEDY),
    "JSON": (records, GREEDY),
    "free": (free, SAMPLED),
}


def prompts(tokenizer: Tokenizer, kind: str, count: int, seed: str) -> list[list[int]]:
    """So many prompts of a kind, the same for the same seed; a server that remembers texts must not get the same twice."""
    rng = random.Random(f"{kind} {seed}")
    ask = KINDS[kind][0]
    return [tokenizer.encode_chat([{"role": "user", "content": ask(rng)}]) for _ in range(count)]


# ---- measuring


def counters(port: int) -> dict[str, float]:
    """The server's counters of speculation, and its steps."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    wanted = ("tailrace_spec_", "tailrace_engine_steps", "tailrace_generation_tokens")
    return {
        name: float(value) for name, _, value in (text.rpartition(" ") for text in lines) if name.startswith(wanted)
    }


def change(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What was counted between the two."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def measure(
    sides: dict[str, int], client: Worker, tokenizer: Tokenizer, args: argparse.Namespace, kind: str, streams: int
) -> list[dict[str, Any]]:
    """One line per server that guesses: its speed as a multiple of the other's in the same round."""
    rates: dict[str, list[float]] = {side: [] for side in sides}
    counts: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    texts: dict[str, list[str]] = {side: [] for side in sides}
    for turn in range(-1, args.rounds):
        chosen = prompts(tokenizer, kind, max(args.requests, streams) if turn >= 0 else streams, f"{streams} {turn}")
        for side in sorted(sides, reverse=turn % 2 == 1):
            before = counters(sides[side])
            answer = client.ask({
                "host": HOST, "port": sides[side], "streams": streams, "prompts": chosen, "output_tokens": args.output_tokens,
                "sampling": KINDS[kind][1] | {"seed": turn + 1}, "until_eos": True,
            })  # fmt: skip
            if turn >= 0:
                rates[side].append(answer["tokens"] / answer["wall_s"])
                counts[side].append(change(before, counters(sides[side])))
                texts[side] += [request["text"] for request in answer["requests"]]
    print(f"measured: {kind}, {streams} streams", file=sys.stderr, flush=True)
    return [line(side, rates, counts[side], texts, kind, streams) for side in sides if side != "none"]


def line(
    side: str,
    rates: dict[str, list[float]],
    counts: list[dict[str, float]],
    texts: dict[str, list[str]],
    kind: str,
    streams: int,
) -> dict[str, Any]:
    """Of the table."""
    total: dict[str, float] = {}
    for count in counts:
        for name, value in count.items():
            total[name] = total.get(name, 0.0) + value
    places = [
        total.get(f'tailrace_spec_accepted_tokens_per_position_total{{position="{p}"}}', 0.0)
        / max(1.0, total.get(f'tailrace_spec_draft_tokens_per_position_total{{position="{p}"}}', 0.0))
        for p in (0, 1, 3, 7)
    ]
    drafted, accepted = (total.get(f"tailrace_spec_{kind}_tokens_total", 0.0) for kind in ("draft", "accepted"))
    ratios = [ours / theirs for ours, theirs in zip(rates[side], rates["none"], strict=True)]
    same = statistics.mean(a == b for a, b in zip(texts[side], texts["none"], strict=True))
    return {
        "text": kind, "streams": streams, "drafter": side, "tok/s": statistics.median(rates[side]), "speed-up": statistics.median(ratios),
        "lowest": min(ratios), "goal": GOALS[kind] if (side, streams) == ("ngram", 1) or kind == "free" else "-",
        "tokens/step": total["tailrace_generation_tokens_total"] / max(1.0, total["tailrace_engine_steps_total"]) / streams,
        "accepted": accepted / max(1.0, drafted), **{f"at {p}": place for p, place in zip((1, 2, 4, 8), places, strict=True)},
        "same": same,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    tokenizer = Tokenizer.load(local.folder)
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        sides = {}
        for drafter in ("none", *args.drafters):
            flags = f"{args.server_args} --no-log-requests --drafter {drafter} --max-drafts {args.max_drafts} --draft-rule exact"
            server = stack.enter_context(serving(argparse.Namespace(**{**vars(args), "server_args": flags}), local))
            sides[drafter] = server["port"]
        client = stack.enter_context(Worker("bench.load", threads=1))
        for streams in args.streams:
            for kind in args.kinds:
                results += measure(sides, client, tokenizer, args, kind, streams)
    about = machine()
    setting = f"{args.threads} threads, {local.name} in {args.dtype}, {args.max_drafts} drafts at most"
    print(f"{about['cpu']}, {setting}, {args.rounds} rounds in turns")
    print(
        "speed-up: against a server without speculation in the same round, median; same: share of answers equal to its answers"
    )
    print(table(results))
    if args.json:
        write_json(args.json, {"machine": about, "dtype": args.dtype, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
