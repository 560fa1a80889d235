"""Compare ways to give drafts to sequences: the same number for each, by acceptance rates, and by the survival of each
draft.

The engine is real; its model, drafter and clock are not. A position of a text is easy or hard: there a draft is right
with a probability of its own, and the text's acceptance is the mean. The drafter's scores know this probability, but
exaggerate it. So scores say something where positions differ (--spread). A step takes --step-ms as long as it has at
most --knee tokens, and in proportion to its tokens beyond, and --token-ms for each token. A pass of the drafter takes
--draft-ms. Nothing else takes time, so the figures don't depend on the machine.

Tokens per simulated second over --steps steps from the first token on, as multiples of the same engine without drafts.
formula: for the same number of drafts, (1 − αᵏ⁺¹) / (1 − α) tokens of a sequence for the time of a step with all drafts
and k passes of the drafter (Leviathan et al., arXiv 2211.17192), if every position is as easy as the mean.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bench.lib.harness import table, write_json
from tailrace.config import CacheConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.engine import speculation, step
from tailrace.engine.engine import Engine
from tailrace.params import SamplingParams
from tailrace.runners.base import Batch
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import ModelInfo, Submit

VOCAB = 64
FIXED = (1, 2, 4, 8)
MIXES: dict[str, tuple[float, ...]] = {  # name → the acceptance of each stream, in turn
    **{f"{rate:.2f}": (rate,) for rate in (0.3, 0.5, 0.7, 0.8, 0.9)},
    "mixed": (0.95, 0.8, 0.6, 0.3),
}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.draft_budget", description=__doc__)
    parser.add_argument(
        "--mixes", nargs="+", default=list(MIXES), choices=list(MIXES), help="acceptance of the streams"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--spread", type=float, default=0.5, help="0: positions are alike; 1: each is right or wrong")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--max-drafts", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--knee", type=int, default=32, help="tokens of a step from which on each one takes its time")
    parser.add_argument("--token-ms", type=float, default=0.05)
    parser.add_argument("--draft-ms", type=float, default=0.3, help="of a pass of the drafter over all sequences")
    parser.add_argument("--noise", type=float, default=0.05, help="of the clock of steps, as a share")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


class SimulatedClock:
    """Time that passes only where something adds to it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Return seconds."""
        return self.now

    thread_time = perf_counter


CLOCK = SimulatedClock()


def step_seconds(args: argparse.Namespace, tokens: int) -> float:
    """Return the time of a step."""
    return (args.step_ms * max(1.0, tokens / args.knee) + args.token_ms * tokens) / 1e3


def find_answer(stream: int, position: int) -> int:
    """Return the token of a stream's text."""
    return (stream * 31 + position * 17 + position // 7) % VOCAB


class SimulatedModel(ScriptedRunner):
    """A model that writes each stream's text. The first token of a prompt names the stream."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(VOCAB, lambda ids: find_answer(ids[0], len(ids)), args.steps * (args.max_drafts + 1) + 16)
        self.args, self.rng = args, random.Random(7)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Let the time pass that such a step takes."""
        usual_s = step_seconds(self.args, len(batch.positions))
        CLOCK.now += usual_s * max(0.5, self.rng.gauss(1.0, self.args.noise))
        return super().forward(batch)


class SimulatedDrafter(Drafter):
    """A drafter whose drafts are right with the probability of their position.

    Args:
        rates: the acceptance of each stream.
        scored: whether the drafts have scores.
    """

    def __init__(self, args: argparse.Namespace, rates: Sequence[float], scored: bool) -> None:
        self.args, self.rates, self.scored = args, rates, scored

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft as much as is asked for."""
        CLOCK.now += max((request.count for request in requests), default=0) * self.args.draft_ms / 1e3
        return [self.write(request) for request in requests]

    def write(self, request: DraftRequest) -> Draft:
        """Return the drafts of one stream."""
        stream, start = request.tokens[0], len(request.tokens)
        rate, tokens, scores = self.rates[stream % len(self.rates)], list[int](), list[float]()
        for position in range(start, start + request.count):
            ease, luck = find_ease(stream, position, rate, self.args.spread)
            tokens.append((find_answer(stream, position) + (luck >= ease)) % VOCAB)
            scores.append(exaggerate(ease))
        return Draft(tokens, scores=scores if self.scored else ())

    def remove(self, slot: int) -> None:
        """Nothing is kept."""


@cache
def find_ease(stream: int, position: int, rate: float, spread: float) -> tuple[float, float]:
    """Return the probability that a draft for this position is right, and the number below it if it is."""
    rng = random.Random(f"{stream} {position}")
    if spread <= 0.0:
        return rate, rng.random()
    strength = 1.0 / spread - 1.0 + 1e-3
    return rng.betavariate(rate * strength, (1.0 - rate) * strength), rng.random()


def exaggerate(ease: float) -> float:
    """Return a score that is surer than it should be."""
    odds = math.log(max(ease, 1e-9) / max(1.0 - ease, 1e-9))
    return 1.0 / (1.0 + math.exp(-1.5 * odds - 0.7))


def measure_rate(args: argparse.Namespace, rates: Sequence[float], streams: int, way: str) -> tuple[float, float]:
    """Return tokens per second, and drafts that were verified per step and stream. way: "plain", "fixed 4", "rates" or
    "survival"."""
    name, _, number = way.partition(" ")
    drafts = SpeculationConfig(max_drafts=int(number or args.max_drafts), adaptive=name != "fixed")
    drafter = None if name == "plain" else (lambda sampler: SimulatedDrafter(args, rates, name == "survival"))
    runner = SimulatedModel(args)
    blocks = streams * (runner.max_model_len // 16 + 2)
    engine = Engine(
        runner,
        ModelInfo("simulated", VOCAB, runner.max_model_len, []),
        CacheConfig(num_blocks=blocks, prefix_reuse=False),
        SchedulerConfig(max_num_seqs=streams, overlap="off"),
        speculation=drafts,
        drafter=drafter,
    )
    for stream in range(streams):
        params = SamplingParams(temperature=0.0, max_tokens=runner.max_model_len - 2, ignore_eos=True)
        engine.submit(Submit(str(stream), 1, [stream], params))
    while engine.waiting or any(sequence.prefilling for sequence in engine.running):
        engine.step()
    counters, start = engine.counters, CLOCK.now
    before, drafted = counters.generated_tokens, counters.drafted_tokens
    for _ in range(args.steps):
        engine.step()
    verified = (counters.drafted_tokens - drafted) / args.steps / streams
    return (counters.generated_tokens - before) / (CLOCK.now - start), verified


def predict_rate(args: argparse.Namespace, rates: Sequence[float], streams: int, drafts: int) -> float:
    """Return the formula's speed-up for the same number of drafts for each."""
    of = [rates[stream % len(rates)] for stream in range(streams)]
    tokens = statistics.mean((1 - rate ** (drafts + 1)) / (1 - rate) for rate in of)
    seconds = step_seconds(args, streams * (drafts + 1)) + drafts * args.draft_ms / 1e3
    return tokens * step_seconds(args, streams) / seconds


def measure_mix(args: argparse.Namespace, mix: str, streams: int) -> dict[str, Any]:
    """Return a row of the table."""
    rates = MIXES[mix]
    fixed = [number for number in FIXED if number <= args.max_drafts]
    ways = ["plain", *(f"fixed {number}" for number in fixed), "rates", "survival"]
    found = {way: measure_rate(args, rates, streams, way) for way in ways}
    ratio = {way: rate / found["plain"][0] for way, (rate, _) in found.items()}
    best = max(fixed, key=lambda number: ratio[f"fixed {number}"])
    print(f"measured: {mix}, {streams} streams", file=sys.stderr, flush=True)
    return {
        "acceptance": mix,
        "streams": streams,
        **{f"fixed {number}": ratio[f"fixed {number}"] for number in fixed},
        **{f"formula {number}": predict_rate(args, rates, streams, number) for number in (1, 4)},
        "by rates": ratio["rates"],
        "by survival": ratio["survival"],
        "to best fixed": ratio["survival"] / max(1.0, ratio[f"fixed {best}"]),
        "to rates": ratio["survival"] / ratio["rates"],
        "drafts, rates": found["rates"][1],
        "drafts, survival": found["survival"][1],
    }


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    step.time = speculation.time = CLOCK  # type: ignore[assignment]
    results = [measure_mix(args, mix, streams) for streams in args.streams for mix in args.mixes]
    print(
        f"simulated: a step of {args.step_ms} ms up to {args.knee} tokens, in proportion beyond, "
        f"{args.token_ms} ms more a token; {args.draft_ms} ms a pass of the drafter; "
        f"{args.max_drafts} drafts at most; spread {args.spread}; "
        f"clock noise {args.noise}"
    )
    print("speed-ups: tokens per second against the same engine without drafts; drafts: verified per step and stream")
    print(table(results))
    if args.json:
        write_json(args.json, {"settings": {k: v for k, v in vars(args).items() if k != "json"}, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
