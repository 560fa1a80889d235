"""Speculation: a server that guesses ahead against one that does not, in the same run and in turns, on text that repeats itself and on text
that does not, by any rule of verification. Beside the speed-up stands what acceptance and the measured times of drafting, of verifying
steps and of plain ones predict.

Every answer ends where the model ends it, so that nothing is won by making it repeat itself for ever. Acceptance comes from the
server's own counters. Under the rule `exact` both servers say the same, token for token; the share of answers that are equal is printed.
The other rules draw other tokens where there is anything to draw: there it is not.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import pydoc_data.topics
import random
import statistics
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from bench.harness import Worker, machine, table, write_json
from bench.server import HOST, add_server_flags, change, counters, serving

from tailrace.config import ModelConfig
from tailrace.models import LocalModel, resolve
from tailrace.options import Rule
from tailrace.text.tokenizer import Tokenizer

Counts = dict[str, float]  # name of a metric, with its labels → value
GOALS = {"summary": 1.8, "code edit": 1.8, "JSON": 1.8, "free": 0.97}  # of n-gram at one stream
GREEDY = {"temperature": 0.0, "ignore_eos": False}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "ignore_eos": False}
SUBJECTS = (
    "a lighthouse keeper who finds a letter",
    "why the sea is salty",
    "a city that moves every night",
    "how bread is made",
    "two rival clockmakers",
    "the history of the bicycle",
    "a detective who can't remember faces",
    "what makes a good teacher",
    "a storm over the mountains",
    "how to learn a language",
    "an astronaut's garden",
    "the life of a river",
    "a museum of forgotten things",
    "why people keep diaries",
    "the last train home",
    "how bees find their way",
)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="tailrace bench spec", description=__doc__)
    parser.add_argument(
        "--drafters",
        nargs="+",
        default=["ngram", "suffix", "early_exit"],
        metavar="NAME[:FOLDER]",
        help="as for tailrace serve --drafter and --draft-model; draft_model alone: the model drafts for itself",
    )
    parser.add_argument("--rules", nargs="+", default=["exact"], choices=get_args(Rule), help="of verification")
    parser.add_argument(
        "--sampled", action="store_true", help="all texts at temperature 0.8, top_p 0.95, not only free ones"
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), help="of text")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument(
        "--requests", type=int, default=8, help="per kind of text and round, at least as many as streams"
    )
    parser.add_argument("--output-tokens", type=int, default=192, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=3, help="turns that the servers take")
    parser.add_argument("--max-drafts", type=int, default=8)
    add_server_flags(parser)
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
        {
            "id": rng.randrange(1000, 9999),
            "name": rng.choice(names),
            "city": rng.choice(["Zürich", "Oslo", "Turin"]),
            "balance": rng.randrange(10_000) / 100,
            "active": rng.random() < 0.5,
        }
        for _ in range(8)
    ]
    return f'{json.dumps(rows, indent=1, ensure_ascii=False)}\n\nRepeat this JSON with "currency": "EUR" added to every record.'


def free(rng: random.Random) -> str:
    """A subject to write about."""
    return f"Write about {rng.choice(SUBJECTS)}. Take number {rng.randrange(1000)} into open_stream."


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


def added(counts: list[Counts]) -> Counts:
    """All together."""
    total: Counts = {}
    for count in counts:
        for name, value in count.items():
            total[name] = total.get(name, 0.0) + value
    return total


@dataclass(frozen=True, slots=True)
class SpecCase:
    """One comparison: what is written, by how many at a time, how guesses are verified."""

    kind: str
    streams: int
    rule: str
    sampled: bool

    @property
    def sampling(self) -> dict[str, Any]:
        """Fields of the requests."""
        return (SAMPLED if self.sampled else KINDS[self.kind][1]) | {"speculation": {"rule": self.rule}}


@dataclass(slots=True)
class Side:
    """What one server did: tokens per second, counts and texts of the rounds."""

    rates: list[float] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def measure(
    ports: dict[str, int], client: Worker, tokenizer: Tokenizer, args: argparse.Namespace, case: SpecCase
) -> list[dict[str, Any]]:
    """One line per server that guesses: its speed as a multiple of the other's in the same round."""
    sides = {name: Side() for name in ports}
    for turn in range(-1, args.rounds):
        count = max(args.requests, case.streams) if turn >= 0 else case.streams
        chosen = prompts(tokenizer, case.kind, count, f"{case.streams} {turn} {case.rule}")
        for name in sorted(sides, reverse=turn % 2 == 1):
            before, side = counters(ports[name]), sides[name]
            answer = client.ask(
                {
                    "host": HOST,
                    "port": ports[name],
                    "streams": case.streams,
                    "prompts": chosen,
                    "output_tokens": args.output_tokens,
                    "sampling": case.sampling | {"seed": turn + 1},
                    "until_eos": True,
                }
            )
            if turn >= 0:
                side.rates.append(answer["tokens"] / answer["wall_s"])
                side.counts.append(change(before, counters(ports[name])))
                side.texts += [request["text"] for request in answer["requests"]]
    print(f"measured: {case.kind}, {case.streams} streams, {case.rule}", file=sys.stderr, flush=True)
    return [line(name, sides[name], sides["none"], case) for name in sides if name != "none"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one server, per step without prefills: ms that drafting took where guesses were verified, ms from the forward pass to the draws
    there and in plain steps; the share of steps that verified; what each sequence gained by one, in tokens."""

    draft_ms: float
    verify_ms: float
    plain_ms: float
    share: float
    gain: float

    @classmethod
    def of(cls, total: Counts, streams: int) -> Costs:
        """By its counters."""
        steps = {kind: total.get(f'decode_steps_total{{kind="{kind}"}}', 0.0) for kind in ("verify", "plain")}
        seconds = {kind: total.get(f'decode_step_seconds_total{{kind="{kind}"}}', 0.0) for kind in steps}
        drafting = sum(total.get(f'engine_step_seconds_total{{part="{part}"}}', 0.0) for part in ("guess", "observe"))
        verify, plain = (1e3 * seconds[kind] / steps[kind] if steps[kind] else math.nan for kind in steps)
        verified = max(1.0, steps["verify"])
        return cls(
            1e3 * drafting / verified,
            verify,
            plain,
            steps["verify"] / max(1.0, sum(steps.values())),
            total.get("spec_accepted_tokens_total", 0.0) / verified / streams,
        )

    def predicted(self, plain_ms: float) -> float:
        """The speed-up that these make, where a plain step takes so long: tokens of a step against its time, in plain steps."""
        if not self.share:
            return 1.0
        return (
            (1.0 + self.share * self.gain)
            * plain_ms
            / (self.share * (self.verify_ms + self.draft_ms) + (1.0 - self.share) * plain_ms)
        )


def line(name: str, side: Side, other: Side, case: SpecCase) -> dict[str, Any]:
    """Of the table."""
    total, plain = added(side.counts), Costs.of(added(other.counts), case.streams)
    costs = Costs.of(total, case.streams)
    at = {
        p: total.get(f'spec_accepted_tokens_per_position_total{{position="{p - 1}"}}', 0.0)
        / (total.get(f'spec_draft_tokens_per_position_total{{position="{p - 1}"}}') or math.nan)
        for p in (1, 2, 3, 4, 8)
    }
    drafted, accepted = (total.get(f"spec_{kind}_tokens_total", 0.0) for kind in ("draft", "accepted"))
    ratios = [ours / theirs for ours, theirs in zip(side.rates, other.rates, strict=True)]
    comparable = case.rule == "exact" or not case.sampling["temperature"]
    same = statistics.mean(a == b for a, b in zip(side.texts, other.texts, strict=True)) if comparable else math.nan
    drafter = name.partition(":")[0]
    judged = case.rule == "exact" and (drafter, case.streams) == ("ngram", 1)
    return {
        "text": case.kind,
        "streams": case.streams,
        "drafter": drafter,
        "rule": case.rule,
        "tok/s": statistics.median(side.rates),
        "speed-up": statistics.median(ratios),
        "predicted": costs.predicted(plain.plain_ms),
        "lowest": min(ratios),
        "goal": GOALS[case.kind] if judged or case.kind == "free" else "-",
        "tokens/step": total["generation_tokens_total"] / max(1.0, total["engine_steps_total"]) / case.streams,
        "accepted": accepted / max(1.0, drafted),
        **{f"at {p}": share for p, share in at.items()},
        "draft ms": costs.draft_ms if costs.share else math.nan,
        "verify ms": costs.verify_ms,
        "plain ms": plain.plain_ms,
        "same": same,
    }


def flags_of(drafter: str, args: argparse.Namespace, local: LocalModel) -> str:
    """Of a server that guesses so."""
    name, _, folder = drafter.partition(":")
    if name == "draft_model":
        folder = folder or str(local.folder)
    more = f"--draft-model {folder}" if folder else ""
    return f"{args.server_args} --no-log-requests --drafter {name} --max-drafts {args.max_drafts} {more}"


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    tokenizer = Tokenizer.load(local.folder)
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        ports = {}
        for drafter in ("none", *args.drafters):
            flags = flags_of(drafter, args, local)
            server = stack.enter_context(serving(argparse.Namespace(**{**vars(args), "server_args": flags}), local))
            ports[drafter] = server["port"]
        client = stack.enter_context(Worker("bench.load", threads=1))
        for streams in args.streams:
            for kind in args.kinds:
                for rule in args.rules:
                    results += measure(ports, client, tokenizer, args, SpecCase(kind, streams, rule, args.sampled))
    about = machine()
    setting = f"{args.threads} threads, {local.name} in {args.dtype}, {args.max_drafts} drafts at most"
    print(f"{about['cpu']}, {setting}, {args.rounds} rounds in turns")
    print(
        "speed-up: against a server without speculation in the same round, median; predicted: from acceptance and the times per step;\n"
        "at n: share of drafts at place n that stood; draft, verify, plain ms: per step without prefills, plain as the other server's;\n"
        "same: share of answers equal to the other server's; with other rules than exact they need be so at temperature 0 only: - there"
    )
    print(table(results))
    if args.json:
        write_json(args.json, {"machine": about, "dtype": args.dtype, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
