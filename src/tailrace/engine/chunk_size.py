"""How many tokens of prompts a step may have. Where sequences decode, prompts are computed beside them in chunks that
keep the step within a multiple of its time without them, by what the last steps took (Sarathi-Serve's stall-free
batching, arXiv 2403.02310, with measured times in place of profiled ones). Knows no sequences; deterministic given what
it is told.

Its curve of times is its own: that of the drafts (drafting/adaptive.py) has no steps with prompts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable

from tailrace.drafting.step_time import StepTime

LEAST = 16  # tokens of prompts that a chunk always has
PATIENCE = 4.0  # times slowdown, at most, where more prompts wait than sequences decode
FIRST = 512  # tokens that a step may have before it is known what larger ones take
LONGEST_S = 1.0  # of a step of more: meanwhile nobody is admitted, and nobody who left is taken out
HURRY = 8.0  # times slowdown and prompts per sequence that decodes, at most, where that reads all that wait
EVERY = 8  # of the steps of a size every so many-th is learned from, once so many were: learning costs tens of µs


class ChunkSize:
    """most: tokens of any step. slowdown: how many times as long as without prompts a step may take where others
    decode; 0: no bound. Where more prompts wait than sequences decode it is as many times that, up to PATIENCE. If then
    one step can read them all within slowdown · prompts per sequence that decodes · HURRY times and LONGEST_S, it does:
    this crowd holds up the streams once and not in several steps."""

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

    def limit(self, decodes: int, crowd: float, waiting: Iterable[int]) -> int:
        """The most tokens of prompts beside so many of sequences that decode. crowd: prompts that wait, per sequence
        that decodes: a chunk costs each of these what it brings each of those. waiting: tokens that each of these
        prompts still needs; looked at as far as one step can read them."""
        if not self.slowdown:
            return self.most
        reach = self._time.reach()
        first = min(FIRST, self.most)
        if not reach:
            return first
        if not decodes:
            return max(first, fitting(first, self.most, LONGEST_S, self._safe))
        most_s = self.slowdown * self._seconds(decodes)
        if crowd > 1.0:
            longest_s, tokens = min(most_s * HURRY * crowd, LONGEST_S), 0
            for each in waiting:
                tokens += each
                if decodes + tokens > self.most or self._safe(decodes + tokens) > longest_s:
                    break
            else:
                return tokens
        least = decodes + LEAST
        most = max(least, min(self.most, reach))
        return fitting(least, most, most_s * min(max(1.0, crowd), PATIENCE), self._seconds) - decodes

    def _seconds(self, tokens: int) -> float:
        """What a step takes; to be trusted up to twice the largest size that was seen."""
        return self._time.estimates(tokens, 0)[0]

    def _safe(self, tokens: int) -> float:
        """The same of any size: no token costs more than one of the largest size that was seen."""
        seen = self._time.reach() // 2
        return self._seconds(min(tokens, seen)) * max(1.0, tokens / seen)


def fitting(least: int, most: int, most_s: float, seconds: Callable[[int], float]) -> int:
    """The largest size from least to most that takes no longer; the least if none does. seconds: of a size; never
    falls."""
    sizes = range(least, most + 1)
    return sizes[max(0, bisect_right(sizes, most_s, key=seconds) - 1)]
