"""The number of prompt tokens in a step. While sequences decode, prompts are computed in chunks.

A chunk keeps the step within a multiple of its time without prompts, by the measured times of the last steps.
Sarathi-Serve's stall-free batching uses profiled times (arXiv 2403.02310). This module knows no sequences. Its results
follow from its inputs.

It has its own curve of times: that of the drafts (drafting/adaptive.py) has no steps with prompts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable

from tailrace.drafting.step_time import StepTime

LEAST = 16  # The fewest prompt tokens in a chunk.
PATIENCE = 4.0  # Largest factor of slowdown, used if more prompts wait than sequences decode.
FIRST = 512  # The most tokens of a step before the time of larger steps is known.
LONGEST_S = 1.0  # The longest larger step. During a step no request is admitted or removed.
HURRY = 8.0  # Factor of slowdown · prompts per decoding sequence, if a step then reads all prompts.
EVERY = 8  # After this many steps of a size, only every EVERY-th is recorded, which takes tens of µs.


class ChunkSize:
    """Chooses the number of prompt tokens in a step.

    - most: the most tokens of any step.
    - slowdown: the longest duration of a step with prompts while sequences decode, relative to one without; 0: no
      bound.

    If more prompts wait than sequences decode, the bound grows by that ratio, up to PATIENCE. If one step can then read
    all of them within slowdown · prompts per decoding sequence · HURRY and LONGEST_S, it does. So a crowd delays the
    streams once and not in several steps.
    """

    def __init__(self, most: int, slowdown: float) -> None:
        self.most, self.slowdown = most, slowdown
        self._time = StepTime()
        self._steps = Counter[int]()  # by their tokens

    def record(self, tokens: int, seconds: float) -> None:
        """Record the time of a step of this many tokens: forward pass and sampling."""
        if tokens > 0 and seconds > 0.0 and self.slowdown:
            self._steps[tokens] += 1
            if self._steps[tokens] <= EVERY or not self._steps[tokens] % EVERY:
                self._time.add(tokens, seconds, plain=True)

    def limit_chunk(self, decodes: int, crowd: float, waiting: Iterable[int]) -> int:
        """Return the most prompt tokens for a step with this many tokens of decoding sequences.

        Args:
            crowd: waiting prompts per decoding sequence. A chunk costs each decoding sequence the time that it gains
                each prompt.
            waiting: tokens that each of these prompts still needs; read only as far as one step can compute them.
        """
        if not self.slowdown:
            return self.most
        reach = self._time.reach()
        first = min(FIRST, self.most)
        if not reach:
            return first
        if not decodes:
            return max(first, find_largest_size(first, self.most, LONGEST_S, self._bound_duration))
        most_s = self.slowdown * self._estimate_duration(decodes)
        if crowd > 1.0:
            longest_s, tokens = min(most_s * HURRY * crowd, LONGEST_S), 0
            for each in waiting:
                tokens += each
                if decodes + tokens > self.most or self._bound_duration(decodes + tokens) > longest_s:
                    break
            else:
                return tokens
        least = decodes + LEAST
        most = max(least, min(self.most, reach))
        return (
            find_largest_size(least, most, most_s * min(max(1.0, crowd), PATIENCE), self._estimate_duration) - decodes
        )

    def _estimate_duration(self, tokens: int) -> float:
        """Return the seconds of a step. They can be trusted up to twice the largest size that was seen."""
        return self._time.estimate_steps(tokens, 0)[0]

    def _bound_duration(self, tokens: int) -> float:
        """Return the seconds of a step of any size: no token costs more than one of the largest size that was seen."""
        seen = self._time.reach() // 2
        return self._estimate_duration(min(tokens, seen)) * max(1.0, tokens / seen)


def find_largest_size(least: int, most: int, most_s: float, seconds: Callable[[int], float]) -> int:
    """Return the largest size from least to most that takes no longer; the least if no size does.

    seconds: of a size; it never falls.
    """
    sizes = range(least, most + 1)
    return sizes[max(0, bisect_right(sizes, most_s, key=seconds) - 1)]
