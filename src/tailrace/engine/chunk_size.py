"""How many tokens of prompts a step may have. Where sequences decode, prompts are computed beside them in chunks that
keep the step within a multiple of its time without them, by what the last steps took (Sarathi-Serve's stall-free
batching, arXiv 2403.02310, with measured times in place of profiled ones). Knows no sequences; deterministic given what
it is told.

Its curve of times is its own: that of the drafts (drafting/adaptive.py) has no steps with prompts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from tailrace.drafting.step_time import StepTime

LEAST = 16  # tokens of prompts that a chunk always has
PATIENCE = 4.0  # times slowdown, at most, where more prompts wait than sequences decode
EVERY = 8  # of the steps of a size every so many-th is learned from, once so many were: learning costs tens of µs


class ChunkSize:
    """most: tokens of any step. slowdown: how many times as long as without prompts a step may take where others
    decode; 0: no bound. Where more prompts wait than sequences decode it is as many times that, up to PATIENCE."""

    def __init__(self, most: int, slowdown: float) -> None:
        self.most, self.slowdown = most, slowdown
        self._time = StepTime()
        self._steps = Counter[int]()  # by their tokens

    def record(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long: forward pass and sampling."""
        if tokens > 0 and seconds > 0.0 and self.slowdown:
            self._steps[tokens] += 1
            if self._steps[tokens] <= EVERY or not self._steps[tokens] % EVERY:
                self._time.add(tokens, seconds, plain=True)

    def limit(self, decodes: int, crowd: float) -> int:
        """The most tokens of prompts beside so many of sequences that decode. crowd: prompts that wait, per sequence
        that decodes: a chunk costs each of these what it brings each of those. Never more than what makes the step
        twice as large as any that was seen: beyond, nothing is known."""
        reach = self._time.reach()
        if not decodes or not self.slowdown or not reach:
            return self.most
        (alone_s,) = self._time.estimates(decodes, 0)
        sizes = range(decodes + LEAST, max(decodes + LEAST, min(self.most, reach)) + 1)  # the curve never falls
        most_s = self.slowdown * min(max(1.0, crowd), PATIENCE) * alone_s
        fitting = bisect_right(sizes, most_s, key=lambda n: self._time.estimates(n, 0)[0])
        return sizes[max(0, fitting - 1)] - decodes
