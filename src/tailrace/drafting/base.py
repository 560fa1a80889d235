"""Recent ids → guesses: what a drafter is. Knows nothing of requests or of the engine's blocks; verification
(sampling/verify.py) keeps whatever it guesses exact, so a drafter may be wrong but never late, and never changes what
it is given.

A step of the engine: `draft` before the target's forward pass, `observe` after its tokens have been committed. Drafters
keep what they know of a sequence by its slot, and forget it in `leave`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from tailrace.options import Rule


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants guesses.

    slot: its place, 0 … S − 1. tokens: prompt and output so far, not to be kept or changed: it grows. count: at most so
    many, ≥ 1. rule: how they will be verified. blocks, computed: its blocks in the target's cache, which cover
    len(tokens) + count positions, and how many of these are computed (len(tokens) − 1: the last token's are not).
    Nobody shares the positions from `computed` on.
    """

    slot: int
    tokens: Sequence[int]
    count: int
    rule: Rule = "exact"
    blocks: Sequence[int] = ()
    computed: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens: 0 … count guesses for what follows. q: float32 [len(tokens), V], the distributions that they were drawn
    from; None: they are one-hot."""

    tokens: list[int]
    q: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class TargetStates:
    """What one forward pass of the target has computed, without the guesses that were rejected.

    Sequence i, in slots[i], has computed its positions first[i] … first[i] + count[i] − 1; rows row[i] … row[i] +
    count[i] − 1 of `hidden` [T, C·H] are the target's hidden states there, those of the layers that the drafter asked
    for side by side. tokens[i]: all of the sequence so far, newly drawn ones too.
    """

    slots: Sequence[int]
    tokens: Sequence[Sequence[int]]
    first: Sequence[int]
    count: Sequence[int]
    row: Sequence[int]
    hidden: torch.Tensor


@runtime_checkable
class Drafter(Protocol):
    """Anything that guesses tokens.

    draws: whether it can draw from distributions, and so whether drafts that nobody has said anything about are
    verified by rejection.
    captures: layers of the target whose output it wants to see in `observe`, 0 … L − 1 (its decoder layers' outputs; L:
    after the final norm); () and `observe` is not called.
    """

    draws: bool
    captures: tuple[int, ...]

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        """Guesses for each, in order. All sequences of the step that want some are asked together, each once."""
        ...

    def observe(self, seen: TargetStates) -> None:
        """The target's forward pass, after it."""
        ...

    def remove(self, slot: int) -> None:
        """The slot's sequence is gone, or starts again from nothing. Also called for slots it has never heard of."""
        ...
