"""Measure what overlap gains with a drafter, on a simulated device with a clock of its own. The work on the host is
real; only the device's time is simulated. So a machine without a GPU measures how long a GPU would wait for the host.

The clock adds the processor time of the engine's thread and the device's time for which the thread waits. So other
work on the machine does not count, and nothing sleeps. A step takes --step-ms and --token-us for each token. Its draws
arrive at the end of the step.

Every token is followed by the next id; the drafter knows that, and each of its guesses is right with the probability
--accept. "none" has no drafter, "silent" one that nobody asks (requests say "max_drafts": 0), "no guess" one that never
drafts. Each engine answers the same requests in turn, for several rounds. Ratios are medians over rounds, against the
engine without a drafter and without overlap in the same round. "idle" is the device's share of idle time.

--assume adds a way that the engine does not have: the next step is planned as if all guesses were right, and launched
before the answer is known. A sequence with a wrong guess is computed for nothing. The new guesses continue the old ones
behind the token between them, which is a guess as well.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from bench.lib.harness import machine, table, write_json
from tailrace.config import CacheConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.engine import speculation, stats, step
from tailrace.engine.draft_tokens import NO_DRAFTS
from tailrace.engine.engine import Engine
from tailrace.engine.in_flight import Drafted, LaunchedDraws
from tailrace.engine.plan import Plan
from tailrace.engine.speculation import Speculator
from tailrace.engine.step import StepDriver
from tailrace.kernels.rows import Rows
from tailrace.params import SamplingParams
from tailrace.request.options import Speculation
from tailrace.runners.base import Batch
from tailrace.runners.scripted import SuccessorRunner
from tailrace.sampling.sampler import Pending, Sampler
from tailrace.wire.messages import ModelInfo, Submit, Tokens

VOCAB = 256  # so small that sampling on the CPU takes no longer than launching it on a GPU


class Clock:
    """Stands for the module `time` in the rooms that look at it."""

    monotonic, thread_time = time.monotonic, time.thread_time

    def __init__(self) -> None:
        self.waited_s = 0.0

    def perf_counter(self) -> float:
        """Processor time, and what was waited for."""
        return time.thread_time() + self.waited_s

    def wait(self, until: float) -> None:
        """Be there at once."""
        self.waited_s += max(0.0, until - self.perf_counter())


CLOCK = Clock()


class Simulated(SuccessorRunner):
    """Calls return at once; what they have launched takes its time, one after the other."""

    def __init__(self, max_model_len: int, step_s: float, token_s: float) -> None:
        super().__init__(VOCAB, max_model_len, block_size=16, delay_s=0.0)
        self.device = torch.device("meta")  # anything that is not the CPU
        self.step_s, self.token_s = step_s, token_s
        self.busy_until = self.idle_s = 0.0

    def forward(self, batch: Batch) -> torch.Tensor:
        now = CLOCK.perf_counter()
        self.idle_s += max(0.0, now - self.busy_until)
        self.busy_until = max(now, self.busy_until) + self.step_s + self.token_s * len(batch.token_ids)
        return super().forward(batch)


class Clocked(Sampler):
    """Draws arrive when the pass that they are made from has taken its time."""

    def __init__(self, sampler: Sampler, runner: Simulated) -> None:
        super().__init__(sampler.slots)
        self.runner = runner

    def begin(self, logits: torch.Tensor, rows: Rows) -> Pending:
        pending, due = super().begin(logits, rows), self.runner.busy_until

        def finish() -> Any:
            CLOCK.wait(due)
            return pending.wait()

        return Pending(pending.token_ids, finish)


class Guesser(Drafter):
    """Each guess is right with the same probability."""

    def __init__(self, accept: float) -> None:
        self.accept, self.rng = accept, random.Random(1)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self.guess(request)) for request in requests]

    def guess(self, request: DraftRequest) -> list[int]:
        last = request.tokens[-1]
        if last < 0:  # a reference: what it will be is a guess, too
            last = (request.tokens[-2] + (1 if self.rng.random() < self.accept else 8)) % VOCAB
        right = [(last + 1 + i) % VOCAB for i in range(request.count)] if self.accept else []
        return [token if self.rng.random() < self.accept else (token + 7) % VOCAB for token in right]

    def remove(self, slot: int) -> None:
        """Nothing is kept."""


class Assumed:
    """While the block runs, all drafts are taken to stand until it is known that they do not."""

    def __enter__(self) -> None:
        self.patches = (
            (StepDriver, "must_wait", lambda driver, launched: not launched.pending),
            (StepDriver, "draft", drafted_early),
            (Speculator, "draft_counts", lambda speculator, work: {}),
            (LaunchedDraws, "join_samples", bonus_tokens),
            (LaunchedDraws, "assume_accepted", assume_all),
        )
        self.real = [getattr(owner, name) for owner, name, _ in self.patches]
        for owner, name, planted in self.patches:
            setattr(owner, name, planted)

    def __exit__(self, *_: object) -> None:
        for patch, real in zip(self.patches, self.real, strict=True):
            setattr(patch[0], patch[1], real)


def drafted_early(driver: StepDriver, plan: Plan, launched: LaunchedDraws | None, counts: Any) -> Drafted:
    """Also while the last tokens are references."""
    with driver.counters.time_part("draft"):
        return Drafted(driver.speculator.draft(plan.work, plan.spare, None), 0.0, asked=False)


def bonus_tokens(launched: LaunchedDraws) -> torch.Tensor | None:
    """The token behind all drafts, of each sequence."""
    found = []
    for sequences, pending in launched.pending:
        counts = [len(launched.step.drafts.get(s.slot, NO_DRAFTS).tokens) for s in sequences]
        found.append(pending.token_ids.gather(1, torch.tensor(counts)[:, None])[:, 0])
    return torch.cat(found) if found and launched.samples is None else None


def assume_all(launched: LaunchedDraws) -> None:
    """Also drafts that would end their sequence."""
    for place, sequence in enumerate(launched.sequences):
        draft = launched.step.drafts.get(sequence.slot, NO_DRAFTS)
        launched._assume_tokens(sequence, [*draft.tokens, -1 - place])


def engine_of(args: argparse.Namespace, streams: int, overlap: str, accept: float | None) -> Engine:
    """accept: None: no drafter."""
    runner = Simulated(args.output_tokens + 64, args.step_ms / 1e3, args.token_us / 1e6)
    engine = Engine(
        runner,
        ModelInfo("simulated", VOCAB, runner.max_model_len, []),
        CacheConfig(num_blocks=streams * (runner.max_model_len // 16 + 2), prefix_reuse=False),
        SchedulerConfig(max_num_seqs=streams, overlap="off" if overlap == "off" else "on"),
        speculation=SpeculationConfig(max_drafts=args.drafts, adaptive=args.adaptive),
        drafter=None if accept is None else lambda sampler: Guesser(accept),
    )
    engine.steps.sampler = Clocked(engine.steps.sampler, runner)
    return engine


def measure(engine: Engine, streams: int, asking: int, args: argparse.Namespace, turn: int) -> dict[str, Any]:
    """All streams from their first token on. asking: streams that guess ahead. parts: ms per step on the host."""
    for i in range(streams):
        speculation = None if i < asking else Speculation(max_drafts=0)
        params = SamplingParams(
            temperature=0.0, max_tokens=args.output_tokens, ignore_eos=True, speculation=speculation
        )
        engine.submit(Submit(f"{turn} {i}", turn, [i, i + 1], params))
    while engine.waiting or any(sequence.prefilling for sequence in engine.running):
        engine.step()
    runner, counters = engine.runner, engine.counters
    assert isinstance(runner, Simulated)
    before, steps, parts, idle_s = counters.generated_tokens, counters.steps, dict(counters.step_ms), runner.idle_s
    start = CLOCK.perf_counter()
    while len(engine.running) == streams:
        engine.step()
    wall_s, steps = CLOCK.perf_counter() - start, counters.steps - steps
    found = {
        "rate": (counters.generated_tokens - before) / wall_s,
        "idle": (runner.idle_s - idle_s) / wall_s,
        "steps": steps,
        "parts": {name: (ms - parts.get(name, 0.0)) / max(1, steps) for name, ms in counters.step_ms.items()},
    }
    said: dict[str, list[int]] = {}
    while engine.has_work:
        for message in engine.step().get(b"", []):
            if isinstance(message, Tokens):
                said.setdefault(message.id, []).extend(message.token_ids)
    assert all((b - a) % VOCAB == 1 for tokens in said.values() for a, b in pairwise(tokens)), "it said something else"
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.overlap", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--accept", type=float, nargs="+", default=[0.3, 0.5, 0.7, 0.9])
    parser.add_argument("--drafts", type=int, default=4, help="at most, of each stream in a step")
    parser.add_argument("--share", type=float, default=1.0, help="of the streams that guess ahead")
    parser.add_argument("--adaptive", action="store_true", help="as many drafts as pay")
    parser.add_argument("--step-ms", type=float, default=3.0, help="of the device")
    parser.add_argument("--token-us", type=float, default=5.0)
    parser.add_argument("--output-tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--assume", action="store_true", help="also plan on all guesses standing")
    parser.add_argument("--parts", action="store_true", help="print what the host's time went into, ms per step")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for module in (step, speculation, stats):
        module.time = CLOCK  # type: ignore[attr-defined]
    record: dict[str, Any] = {"machine": machine(), **{k: v for k, v in vars(args).items() if k != "json"}}
    print(f"{record['machine']['cpu']}; simulated steps of {args.step_ms} ms + {args.token_us} µs a token")
    record["rows"] = [row for streams in args.streams for row in lines(args, streams)]
    if args.json:
        write_json(args.json, record)
    return 0


def lines(args: argparse.Namespace, streams: int) -> list[dict[str, Any]]:
    """One per drafter."""
    asking = max(1, round(streams * args.share))
    modes = ("off", "on", "assumed") if args.assume else ("off", "on")
    # name → accept, and how many of the streams ask
    cases: dict[str, tuple[float | None, int]] = {"none": (None, 0), "silent": (0.0, 0), "no guess": (0.0, asking)}
    cases |= {f"{accept:.2f}": (accept, asking) for accept in args.accept}
    engines = {(name, mode): engine_of(args, streams, mode, case[0]) for name, case in cases.items() for mode in modes}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in engines}
    for turn in range(args.rounds + 1):
        for name, mode in engines if turn % 2 else reversed(engines):
            with Assumed() if mode == "assumed" else contextlib.nullcontext():
                one = measure(engines[name, mode], streams, cases[name][1], args, turn)
            if turn:  # the first round warms up
                found[name, mode].append(one)
    rows = [line(found, name, mode, args.parts) for name in cases for mode in modes]
    print(f"\n{streams} streams, {asking} of them asking\n{table(rows)}", flush=True)
    return rows


def line(found: dict[tuple[str, str], list[dict[str, Any]]], name: str, mode: str, parts: bool) -> dict[str, Any]:
    """Of all rounds of one engine."""
    mine = found[name, mode]

    def against(other: tuple[str, str]) -> float:
        return statistics.median(one["rate"] / its["rate"] for one, its in zip(mine, found[other], strict=True))

    names = sorted({part for all_of_them in found.values() for one in all_of_them for part in one["parts"]})
    middle = {part: statistics.median(one["parts"].get(part, 0.0) for one in mine) for part in names if parts}
    return {
        "drafter": name,
        "overlap": mode,
        "tok/s": statistics.median(one["rate"] for one in mine),
        "of none, off": against(("none", "off")),
        "on / off": against((name, "off")),
        "idle": statistics.median(one["idle"] for one in mine),
        "steps": statistics.median(one["steps"] for one in mine),
    } | {f"{part} ms": ms for part, ms in middle.items()}


if __name__ == "__main__":
    raise SystemExit(main())
