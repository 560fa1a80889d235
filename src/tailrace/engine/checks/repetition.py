"""Ends a sequence whose last tokens are one pattern, repeated."""

from __future__ import annotations

import numpy as np

from tailrace.request.options import RepetitionDetection


class RepetitionCheck:
    """One sequence's check, over its output alone.

    For every size s it counts how many tokens in a row equal the token s places before them. s·(min_count − 1) such
    tokens are a pattern of that size, min_count times.
    """

    stop_reason = "repetition"

    def __init__(self, asked: RepetitionDetection, min_tokens: int) -> None:
        sizes = np.arange(1, asked.max_pattern_size + 1)
        self._needed = sizes * (asked.min_count - 1)
        self._needed[: asked.min_pattern_size - 1] = np.iinfo(np.int64).max
        self._equal = np.zeros_like(sizes)  # entry i: tokens in a row that equal the one i + 1 places before
        self._recent = np.full_like(sizes, -1)  # the latest first
        self._min_tokens = min_tokens
        self._count = 0

    def push(self, token: int) -> bool:
        """Add a token. Return True if a pattern is complete often enough, beyond min_tokens."""
        self._count += 1
        self._equal = np.where(self._recent == token, self._equal + 1, 0)
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token
        return self._count > self._min_tokens and bool((self._equal >= self._needed).any())
