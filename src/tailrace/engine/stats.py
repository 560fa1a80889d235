"""The engine's running totals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tailrace.wire.messages import Stats

Lane = Literal["cpu", "device"]


class Span(NamedTuple):
    """A part of a step: seconds of time.perf_counter, and whether the engine's thread or the one that stands for the device was in it."""

    part: str
    start: float
    end: float
    lane: Lane


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
    drafted_at: Counter[int] = field(default_factory=Counter)  # by place in the draft, from 0
    accepted_at: Counter[int] = field(default_factory=Counter)
    bad_rows: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    step_ms: dict[str, float] = field(default_factory=dict)
    trace: list[Span] | None = None  # whoever wants to see the steps side by side puts a list here

    @contextmanager
    def timed(self, part: str, lane: Lane = "cpu") -> Iterator[None]:
        """Add the time inside to a part of the step. No part is timed on two lanes at once."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.step_ms[part] = self.step_ms.get(part, 0.0) + (end - start) * 1e3
            if self.trace is not None:
                self.trace.append(Span(part, start, end, lane))

    def snapshot(self, **gauges: int) -> Stats:
        """The message of now."""
        return Stats(
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=self.preemptions,
            rewinds=self.rewinds,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            drafted_at=[self.drafted_at[place] for place in range(len(self.drafted_at))],
            accepted_at=[self.accepted_at[place] for place in range(len(self.drafted_at))],
            bad_rows=dict(self.bad_rows),
            finished=dict(self.finished),
            step_ms={part: round(total, 3) for part, total in dict(self.step_ms).items()},
            **gauges,
        )
