"""Processor time that the choice of drafts takes in a step of many streams.

The engine, its n-gram drafter and its choice of drafts are real; the model and the clock of steps are not. Each stream
repeats a text of its own of --period tokens, in which a share --wrong of the tokens is random. A step takes --step-ms
as long as it has at most --knee tokens, and in proportion to its tokens beyond. So the same drafts are made whatever
the machine, and only what runs in this process is measured: milliseconds of processor time per step, without the
model. `choice` is the part of the controller (drafting/adaptive.py), `other` everything else; the smallest of --rounds.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from bench.lib.harness import table, write_json
from tailrace.config import CacheConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.adaptive import DraftLengthController
from tailrace.drafting.ngram import NGram
from tailrace.engine import speculation, step
from tailrace.engine.engine import Engine
from tailrace.params import SamplingParams
from tailrace.runners.base import Batch
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import ModelInfo, Submit

VOCAB = 512
CALLS = ("counts", "select", "record_drafting", "record_acceptance", "record_step", "record_delay")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.draft_cost", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--period", type=int, default=24)
    parser.add_argument("--wrong", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-drafts", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--knee", type=int, default=512)
    parser.add_argument("--fixed", action="store_true", help="as many drafts as there are, whatever they gain")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


class StepClock:
    """The simulated time of steps, and the processor time of the model and of the choice of drafts."""

    def __init__(self) -> None:
        self.now = self.model_s = self.choice_s = 0.0

    def perf_counter(self) -> float:
        """Return simulated seconds."""
        return self.now

    thread_time = perf_counter

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which now counts its processor time as time of the choice."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.choice_s += time.thread_time() - start

        return timed


CLOCK = StepClock()


class RepeatingModel(ScriptedRunner):
    """A model that writes each stream's text. The first token of a prompt names the stream."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(VOCAB, self.answer, (args.steps + 64) * (args.max_drafts + 1) + 16)
        self.args, self.known = args, dict[tuple[int, int], int]()

    def answer(self, ids: list[int]) -> int:
        """Return the token after these."""
        key = (ids[0], len(ids))
        if key not in self.known:
            rng = random.Random(f"{key}")
            wrong = rng.random() < self.args.wrong
            usual = random.Random(f"{ids[0]} {len(ids) % self.args.period}")
            self.known[key] = (rng if wrong else usual).randrange(VOCAB)
        return self.known[key]

    def forward(self, batch: Batch) -> torch.Tensor:
        """Let the time pass that such a step takes."""
        start = time.thread_time()
        CLOCK.now += self.args.step_ms * max(1.0, len(batch.positions) / self.args.knee) / 1e3
        logits = super().forward(batch)
        CLOCK.model_s += time.thread_time() - start
        return logits


def measure_steps(args: argparse.Namespace, streams: int) -> tuple[float, float, float, float]:
    """Return processor seconds per step of the choice and of all but the model, and drafts and tokens per step and
    stream."""
    runner = RepeatingModel(args)
    engine = Engine(
        runner,
        ModelInfo("repeating", VOCAB, runner.max_model_len, []),
        CacheConfig(num_blocks=streams * (runner.max_model_len // 16 + 2), prefix_reuse=False),
        SchedulerConfig(max_num_seqs=streams, overlap="off"),
        speculation=SpeculationConfig(max_drafts=args.max_drafts, adaptive=not args.fixed),
        drafter=lambda sampler: NGram(),
    )
    for stream in range(streams):
        params = SamplingParams(temperature=0.0, max_tokens=runner.max_model_len - 2, ignore_eos=True)
        engine.submit(Submit(str(stream), 1, [stream % VOCAB], params))
    while engine.waiting or any(sequence.prefilling for sequence in engine.running):
        engine.step()
    for _ in range(50):
        engine.step()
    counters = engine.counters
    drafted, generated = counters.drafted_tokens, counters.generated_tokens
    CLOCK.model_s = CLOCK.choice_s = 0.0
    start = time.thread_time()
    for _ in range(args.steps):
        engine.step()
    all_s = (time.thread_time() - start - CLOCK.model_s) / args.steps
    found = (counters.drafted_tokens - drafted, counters.generated_tokens - generated)
    return CLOCK.choice_s / args.steps, all_s, *(number / args.steps / streams for number in found)


def measure_streams(args: argparse.Namespace, streams: int) -> dict[str, Any]:
    """Return a row of the table."""
    rounds = [measure_steps(args, streams) for _ in range(args.rounds)]
    choice_s, all_s, drafts, tokens = (min(column) for column in zip(*rounds, strict=True))
    other_s = min(both - choice for choice, both, *_ in rounds)
    return {
        "streams": streams,
        "choice ms": choice_s * 1e3,
        "other ms": other_s * 1e3,
        "step ms": all_s * 1e3,
        "share": choice_s / all_s,
        "drafts": drafts,
        "tokens": tokens,
    }


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    torch.set_num_threads(1)
    step.time = speculation.time = CLOCK  # type: ignore[assignment]
    for name in CALLS:
        setattr(DraftLengthController, name, CLOCK.watch(getattr(DraftLengthController, name)))
    results = [measure_streams(args, streams) for streams in args.streams]
    print("processor time per step, without the model; drafts, tokens: per step and stream")
    print(table(results))
    if args.json:
        write_json(args.json, {"settings": {k: v for k, v in vars(args).items() if k != "json"}, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
