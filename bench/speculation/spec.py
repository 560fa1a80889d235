"""Compare a server with a drafter and a server without, in turns on text that repeats itself and on text that does not,
under any rule of verification. Beside the speed-up stands the prediction from acceptance and the measured times of
drafting, verifying steps and plain steps.

Every answer ends where the model ends it, so that nothing is gained by endless repetition. Acceptance comes from the
server's own counters. Under the rule `exact` both servers give the same tokens, and the share of equal answers is
printed. Under other rules sampled tokens differ, and no share is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any, get_args

from bench.lib.harness import Worker, machine, table, write_json
from bench.lib.server import HOST, add_server_flags, change, counters, serving
from bench.speculation.spec_prompts import KINDS, SAMPLED, prompts
from tailrace.config import ModelConfig
from tailrace.models import LocalModel, resolve
from tailrace.request.options import Rule
from tailrace.text.tokenizer import Tokenizer

Counts = dict[str, float]  # name of a metric, with its labels → value
GOALS = {"summary": 1.8, "code edit": 1.8, "JSON": 1.8, "free": 0.97}  # for n-gram at one stream


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.spec", description=__doc__)
    parser.add_argument(
        "--drafters",
        nargs="+",
        default=["ngram", "suffix", "early_exit"],
        metavar="NAME[:FOLDER]",
        help="as for tailrace serve --drafter and --draft-model; draft_model alone: the model drafts for itself",
    )
    parser.add_argument("--draft-quantize", default="none", help="of the weights of draft_model, as for tailrace serve")
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


# ---- measuring


def added(counts: list[Counts]) -> Counts:
    """The sum of all counts."""
    total: Counts = {}
    for count in counts:
        for name, value in count.items():
            total[name] = total.get(name, 0.0) + value
    return total


@dataclass(frozen=True, slots=True)
class SpecCase:
    """One comparison: the kind of text, the number of streams, the rule of verification."""

    kind: str
    streams: int
    rule: str
    sampled: bool

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling fields of the requests."""
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
    """One row per server that drafts: its speed as a multiple of the plain server's in the same round."""
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
    """Costs of one server, per step without prefills: ms of drafting in verifying steps; ms from the forward pass to
    the samples in verifying and in plain steps; the share of verifying steps; the tokens that a sequence gained by one.
    """

    draft_ms: float
    verify_ms: float
    plain_ms: float
    share: float
    gain: float

    @classmethod
    def of(cls, total: Counts, streams: int) -> Costs:
        """The costs, from its counters."""
        steps = {kind: total.get(f'decode_steps_total{{kind="{kind}"}}', 0.0) for kind in ("verify", "plain")}
        seconds = {kind: total.get(f'decode_step_seconds_total{{kind="{kind}"}}', 0.0) for kind in steps}
        drafting = sum(total.get(f'engine_step_seconds_total{{part="{part}"}}', 0.0) for part in ("draft", "observe"))
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
        """The speed-up that these costs give if a plain step takes `plain_ms`: tokens of a step against its time, in
        plain steps."""
        if not self.share:
            return 1.0
        return (
            (1.0 + self.share * self.gain)
            * plain_ms
            / (self.share * (self.verify_ms + self.draft_ms) + (1.0 - self.share) * plain_ms)
        )


def line(name: str, side: Side, other: Side, case: SpecCase) -> dict[str, Any]:
    """A row of the table."""
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
    """The flags of a server with this drafter."""
    name, _, folder = drafter.partition(":")
    if name == "draft_model":
        folder = f"{folder or local.folder} --draft-quantize {args.draft_quantize}"
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
        client = stack.enter_context(Worker("bench.lib.load", threads=1))
        for streams in args.streams:
            for kind in args.kinds:
                for rule in args.rules:
                    results += measure(ports, client, tokenizer, args, SpecCase(kind, streams, rule, args.sampled))
    about = machine()
    setting = f"{args.threads} threads, {local.name} in {args.dtype}, {args.max_drafts} drafts at most"
    print(f"{about['cpu']}, {setting}, {args.rounds} rounds in turns")
    print(
        "speed-up: against a server without speculation in the same round, median\n"
        "predicted: from acceptance and the times per step\n"
        "at n: share of accepted drafts at place n\n"
        "draft, verify, plain ms: per step without prefills; plain: of the other server\n"
        "same: share of answers equal to the other server's; -: under this rule sampled answers may differ"
    )
    print(table(results))
    if args.json:
        write_json(args.json, {"machine": about, "dtype": args.dtype, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
