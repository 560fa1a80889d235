"""The engine's running totals."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tailrace.wire.messages import DURATION_EDGES_S, Stats
from tailrace.wire.pulse import Pulse

Lane = Literal["cpu", "device"]


class Span(NamedTuple):
    """A part of a step, in seconds of time.perf_counter. lane: "cpu" is the engine's thread, "device" the device."""

    part: str
    start: float
    end: float
    lane: Lane


class Durations:
    """A histogram of durations: a count per bucket of DURATION_EDGES_S and one for longer ones, and the sum."""

    __slots__ = ("counts", "total_ms")

    def __init__(self) -> None:
        self.counts, self.total_ms = [0] * (len(DURATION_EDGES_S) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self.counts[bisect_left(DURATION_EDGES_S, seconds)] += 1
        self.total_ms += seconds * 1e3


@dataclass(slots=True)
class Counters:
    """See wire.messages.Stats."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    rewinds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forced_drafted: int = 0  # of the drafted tokens: what a grammar or the request allows alone, no drafter's guess
    forced_accepted: int = 0
    drafted_at: Counter[int] = field(default_factory=Counter)  # guesses, by place in the draft, from 0
    accepted_at: Counter[int] = field(default_factory=Counter)
    bad_rows: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    parts: dict[str, Durations] = field(default_factory=dict)  # of the step
    # Steps without prefills, from the forward pass to the draws.
    decodes: dict[str, Durations] = field(default_factory=dict)
    turns: Durations = field(default_factory=Durations)  # of the engine's thread: all its work between two waits
    trace: list[Span] | None = None  # set a list here to record the parts of steps side by side
    pulse: Pulse | None = None  # shows the current part to other processes

    @contextmanager
    def time_part(self, part: str, lane: Lane = "cpu") -> Iterator[None]:
        """Add the time inside to a part of the step. No part is timed on two lanes at once."""
        start = time.perf_counter()
        pulse = self.pulse if lane == "cpu" else None
        before = pulse.enter(part) if pulse is not None else ""
        try:
            yield
        finally:
            if pulse is not None:
                pulse.enter(before)
            end = time.perf_counter()
            if (durations := self.parts.get(part)) is None:
                durations = self.parts[part] = Durations()
            durations.add(end - start)
            if self.trace is not None:
                self.trace.append(Span(part, start, end, lane))

    def count_drafts(self, drafted: int, accepted: int, forced: bool) -> None:
        """Count a draft's tokens, and how many of them were accepted."""
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        if forced:
            self.forced_drafted += drafted
            self.forced_accepted += accepted
        else:
            self.accepted_at.update(range(accepted))
            self.drafted_at.update(range(drafted))

    def decoded(self, verified: bool, seconds: float) -> None:
        """Record the time of a step without prefills, from its forward pass to its samples. verified: it had drafts."""
        self.decodes.setdefault("verify" if verified else "plain", Durations()).add(seconds)

    @property
    def step_ms(self) -> dict[str, float]:
        """The time of each part so far."""
        return {part: durations.total_ms for part, durations in dict(self.parts).items()}

    def make_stats(self, **gauges: Any) -> Stats:
        """Return the current Stats message."""
        return Stats(
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=self.preemptions,
            rewinds=self.rewinds,
            drafted_tokens=self.drafted_tokens - self.forced_drafted,
            accepted_tokens=self.accepted_tokens - self.forced_accepted,
            drafted_at=[self.drafted_at[place] for place in range(len(self.drafted_at))],
            accepted_at=[self.accepted_at[place] for place in range(len(self.drafted_at))],
            bad_rows=dict(self.bad_rows),
            finished=dict(self.finished),
            step_ms={part: round(total, 3) for part, total in self.step_ms.items()},
            step_counts={part: list(durations.counts) for part, durations in dict(self.parts).items()},
            decode_steps={kind: sum(durations.counts) for kind, durations in dict(self.decodes).items()},
            decode_ms={kind: round(durations.total_ms, 3) for kind, durations in dict(self.decodes).items()},
            turn_ms=round(self.turns.total_ms, 3),
            turn_counts=list(self.turns.counts),
            **gauges,
        )
