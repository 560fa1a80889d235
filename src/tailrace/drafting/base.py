"""Recent token ids → drafts: the interface of drafters. A drafter knows nothing of requests or of the engine's blocks.

Verification (sampling/verify.py) keeps the output exact whatever is drafted. So a drafter may be wrong, but never slow.
It never changes its arguments.

In each step the engine calls `draft` before the target's forward pass, and `observe` once the step's samples are known.
Drafters store what they know of a sequence by its slot, and forget it in `remove`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tailrace.request.options import Rule


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants drafts.

    - slot: its slot, 0 … S − 1.
    - tokens: prompt and output so far. It grows, so it must be neither kept nor changed.
    - count: the most drafts, ≥ 1.
    - rule: how they will be verified.
    - blocks: its blocks in the target's cache, which cover len(tokens) + count positions.
    - computed: how many of these positions are computed: len(tokens) − 1, since the last token's is not. No other
      sequence shares the positions from `computed` on.
    - salt: texts of requests with other salts must not change the drafts. user: whose request it is.
    """

    slot: int
    tokens: Sequence[int]
    count: int
    rule: Rule = "exact"
    blocks: Sequence[int] = ()
    computed: int = 0
    salt: bytes = b""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """The drafts of one sequence: 0 … count tokens.

    - q: float32 [len(tokens), V], the distributions that they were drawn from; None: they are one-hot.
    - scores: for each token a number in 0 … 1 that rises with the probability that it is accepted after those before
      it. Drafts with low scores may not be verified. A score depends on the tokens before its own, and not on which
      token was drawn (drafting/draft_budget.py). () or None: there are none, and the rates of acceptance by position
      decide alone.
    - source: the name under which the scores are compared with what became of the drafts.
    """

    tokens: list[int]
    q: torch.Tensor | None = None
    scores: Sequence[float] | None = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Hidden states that one forward pass of the target has computed, without those of rejected drafts.

    Sequence i is in slots[i]. The pass has computed its positions first[i] … first[i] + count[i] − 1. Their hidden
    states are the rows row[i] … row[i] + count[i] − 1 of `hidden` [T, C·H]. A row holds the states of the layers that
    the drafter captures, side by side. tokens[i] is the whole sequence so far, newly sampled tokens included.
    """

    slots: Sequence[int]
    tokens: Sequence[Sequence[int]]
    first: Sequence[int]
    count: Sequence[int]
    row: Sequence[int]
    hidden: torch.Tensor


class Drafter(ABC):
    """Anything that drafts tokens.

    - draws: it can draw from distributions, so its drafts are verified by rejection unless a request or the operator
      sets another rule.
    - captures: the target's layers whose output `observe` gets: 0 … L − 1 for its decoder layers, L for the output
      after the final norm. With () `observe` is not called.
    - cache_bytes: size of the drafter's own KV cache. Memory that is allocated but not yet written does not count as
      memory of requests (engine/memory.py).
    """

    draws: bool = False
    captures: tuple[int, ...] = ()
    cache_bytes: int = 0

    @abstractmethod
    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return drafts for each request, in order. All sequences of the step that want drafts are asked together, each
        once."""

    def observe(self, seen: TargetStates) -> None:
        """Take the hidden states of the target's forward pass. Called after the pass, if `captures` is not empty."""
        raise NotImplementedError(f"{type(self).__name__} captures {self.captures} and observes nothing")

    @abstractmethod
    def remove(self, slot: int) -> None:
        """Forget the slot's sequence, which is gone or starts again from nothing. Also called for unknown slots."""
