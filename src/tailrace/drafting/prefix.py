"""Tests whether a stored text is still the beginning of a sequence.

While one sequence owns a slot, its text changes only at the end: it grows, or it is cut back and continues differently.
"""

from __future__ import annotations

from collections.abc import Sequence

RECENT = 1024  # last tokens that are compared to detect a cut and another continuation: 2 µs


def count_valid_prefix(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many of the held tokens, from the first on, are the sequence's. If the last RECENT are equal, all
    are."""
    known = len(held)
    since = max(0, known - RECENT)
    return known if list(tokens[since:known]) == list(held[since:]) else count_common_prefix(held, tokens)


def count_common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    shorter = min(len(one), len(other))
    if list(one[:shorter]) == list(other[:shorter]):
        return shorter
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
