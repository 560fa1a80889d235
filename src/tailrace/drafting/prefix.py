"""Whether a remembered text is still the beginning of a sequence. While one sequence owns a slot, its text changes only
at the end: it grows, or it is cut back and goes on differently."""

from __future__ import annotations

from collections.abc import Sequence

RECENT = 1024  # tokens looked at to notice that a text was cut back and went on differently: 2 µs


def standing(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of the tokens held, from the first on, are those of the sequence. Where the last RECENT are the same,
    all are."""
    known = len(held)
    since = max(0, known - RECENT)
    return known if list(tokens[since:known]) == list(held[since:]) else agreeing(held, tokens)


def agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens at the beginning of both that are the same."""
    shorter = min(len(one), len(other))
    if list(one[:shorter]) == list(other[:shorter]):
        return shorter
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
