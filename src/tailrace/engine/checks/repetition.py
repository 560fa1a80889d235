"""Ends a sequence, or its thought, whose last tokens are one pattern, repeated."""

from __future__ import annotations

import numpy as np

from tailrace.engine.checks.thinking_budget import ThinkingBudgetCheck
from tailrace.request.options import RepetitionDetection


class RepetitionCheck:
    """One sequence's check, over its output alone. Within a thought it ends the thought: see `push`.

    For every size s it counts how many tokens in a row equal the token s places before them. s·(min_count − 1) such
    tokens are a pattern of that size, min_count times.
    """

    stop_reason = "repetition"

    def __init__(
        self, asked: RepetitionDetection, min_tokens: int, thinking: ThinkingBudgetCheck | None = None
    ) -> None:
        """thinking: the check that knows where thoughts are, and has read each token before."""
        sizes = np.arange(1, asked.max_pattern_size + 1)
        self._needed = sizes * (asked.min_count - 1)
        self._needed[: asked.min_pattern_size - 1] = np.iinfo(np.int64).max
        self._equal = np.zeros_like(sizes)  # entry i: tokens in a row that equal the one i + 1 places before
        self._recent = np.full_like(sizes, -1)  # the latest first
        self._min_tokens, self._thinking = min_tokens, thinking
        self._count = 0

    def push(self, token: int) -> bool:
        """Add a token. Return True if a pattern is complete often enough, beyond min_tokens, outside a thought.

        Within a thought, the thought ends in place of the sequence, and counting begins anew.
        """
        self._count += 1
        self._equal = np.where(self._recent == token, self._equal + 1, 0)
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token
        if self._count <= self._min_tokens or not (self._equal >= self._needed).any():
            return False
        if self._thinking is None or not self._thinking.end_thought():
            return True
        self._equal[:] = 0
        self._recent[:] = -1
        return False
