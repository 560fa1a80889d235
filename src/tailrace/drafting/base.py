"""Recent token ids → drafts: what a drafter is. A drafter knows nothing of requests or of the engine's blocks.
Verification (sampling/verify.py) keeps the output exact whatever it drafts: it may be wrong but never slow, and it
never changes what it is given.

In a step of the engine, `draft` is called before the target's forward pass, and `observe` after its samples are known.
Drafters keep what they know of a sequence by its slot, and forget it in `remove`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from tailrace.options import Rule


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants drafts.

    slot: its slot, 0 … S − 1. tokens: prompt and output so far; not to be kept or changed, since it grows. count: the
    most drafts, ≥ 1. rule: how they will be verified. blocks: its blocks in the target's cache, which cover len(tokens)
    + count positions. computed: how many of these positions are computed (len(tokens) − 1: the last token's is not). No
    other sequence shares the positions from `computed` on.
    """

    slot: int
    tokens: Sequence[int]
    count: int
    rule: Rule = "exact"
    blocks: Sequence[int] = ()
    computed: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens: 0 … count drafts. q: float32 [len(tokens), V], the distributions that they were drawn from; None: they
    are one-hot."""

    tokens: list[int]
    q: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Hidden states that one forward pass of the target has computed, without those of rejected drafts.

    Sequence i is in slots[i]. The pass has computed its positions first[i] … first[i] + count[i] − 1. Rows row[i] …
    row[i] + count[i] − 1 of `hidden` [T, C·H] are the target's hidden states there: those of the layers that the
    drafter captures, side by side. tokens[i]: the whole sequence so far, newly sampled tokens included.
    """

    slots: Sequence[int]
    tokens: Sequence[Sequence[int]]
    first: Sequence[int]
    count: Sequence[int]
    row: Sequence[int]
    hidden: torch.Tensor


@runtime_checkable
class Drafter(Protocol):
    """Anything that drafts tokens.

    draws: it can draw from distributions, so its drafts are verified by rejection unless somebody says otherwise.
    captures: the target's layers whose output `observe` gets, 0 … L − 1 for its decoder layers, L for the output after
    the final norm. () means that `observe` is not called.

    A drafter with a KV cache of its own says in `cache_bytes` how large it is: memory that is set aside, and that the
    system gives when it is first written, is not memory of requests (engine/memory.py).
    """

    draws: bool
    captures: tuple[int, ...]

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Drafts for each request, in order. All sequences of the step that want drafts are asked together, each
        once."""
        ...

    def observe(self, seen: TargetStates) -> None:
        """Called after the target's forward pass."""
        ...

    def remove(self, slot: int) -> None:
        """The slot's sequence is gone, or starts again from nothing. Also called for slots it has never heard of."""
        ...
