"""One step's rows, frozen: which logits row belongs to which slot and position. Built once, at the top of the step.

Symbols: N requests in the step, S slots, K drafts at most, R = Σ(kᵢ + 1) rows, L logits rows, V vocabulary.
Plain decoding is verifying zero drafts: every request has one row, R = N. All contiguous, on the CPU. Numbers out of range are
found by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from tailrace.options import Rule

RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True)
class Rows:
    """slot:      int64 [R], the row's entry in Slots.
    source:    int64 [R], the row's logits: several rows may share one (n > 1 right after the shared prefill).
    position:  int64 [R], index, within prompt + output, of the token that this row decides: the noise's counter.
    start:     int64 [N + 1], request i owns rows start[i] … start[i + 1] − 1: its drafts in order, then the bonus row.
    draft:     int64 [R], the draft token this row verifies; −1 on bonus rows.
    width:     K + 1.
    rule:      int32 [N], how drafts are verified, as an index of RULES; None: all exact.
    proposals: float32 [R, V], the distributions that the drafts were drawn from; None: they are one-hot.
    mask:      int64 [R], the row's place in `masks`; −1: none. None: no row has one.
    masks:     int32 [M, ⌈V / 32⌉], contiguous: bit i of word i // 32 stands for token i; where it is 0 the logit becomes −inf before
               any other edit.
    """

    slot: torch.Tensor
    source: torch.Tensor
    position: torch.Tensor
    start: torch.Tensor
    draft: torch.Tensor
    width: int = 1
    rule: torch.Tensor | None = None
    proposals: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    masks: torch.Tensor | None = None

    @staticmethod
    def plain(
        slot: Sequence[int],
        source: Sequence[int],
        position: Sequence[int],
        *,
        mask: Sequence[int] | None = None,
        masks: torch.Tensor | None = None,
    ) -> Rows:
        """Rows of a step without drafts: one per request."""
        n = len(slot)
        return Rows(
            slot=torch.tensor(slot, dtype=torch.int64),
            source=torch.tensor(source, dtype=torch.int64),
            position=torch.tensor(position, dtype=torch.int64),
            start=torch.arange(n + 1),
            draft=torch.full((n,), -1, dtype=torch.int64),
            mask=None if mask is None else torch.tensor(mask, dtype=torch.int64),
            masks=masks,
        )

    @staticmethod
    def drafted(
        slot: Sequence[int],
        position: Sequence[int],
        drafts: Sequence[Sequence[int]],
        rule: Sequence[Rule] | None = None,
        proposals: torch.Tensor | None = None,
        *,
        source: Sequence[int] | None = None,
        mask: Sequence[int] | None = None,
        masks: torch.Tensor | None = None,
    ) -> Rows:
        """Rows of a step that verifies drafts.

        Args:
            slot, position: of each request; position is that of its first row. drafts: of each request, possibly none.
            rule: of each request; None is "exact" for all. proposals: see above; bonus rows are not looked at.
            source: of each request, the logits row of its first row, whose successors are its further rows'; None: row r has logits row r.
            mask, masks: of each row; see above.
        """
        counts = [len(d) + 1 for d in drafts]
        start = torch.tensor([0, *counts]).cumsum(0)
        first = start[:-1].tolist() if source is None else source
        return Rows(
            slot=torch.tensor(
                [s for s, count in zip(slot, counts, strict=True) for _ in range(count)], dtype=torch.int64
            ),
            source=spread(first, counts),
            position=spread(position, counts),
            start=start,
            draft=torch.tensor([token for d in drafts for token in (*d, -1)], dtype=torch.int64),
            width=max(counts, default=1),
            rule=None if rule is None else torch.tensor([RULES.index(r) for r in rule], dtype=torch.int32),
            proposals=proposals,
            mask=None if mask is None else torch.tensor(mask, dtype=torch.int64),
            masks=masks,
        )

    @property
    def num_requests(self) -> int:
        """N."""
        return self.start.numel() - 1

    @property
    def num_rows(self) -> int:
        """R."""
        return self.slot.numel()

    def rule_of(self, request: int) -> Rule:
        """How this request's drafts are verified."""
        return "exact" if self.rule is None else RULES[int(self.rule[request])]


def spread(first: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
    """first[i], first[i] + 1, … counts[i] of them, for each i: int64 [Σ counts]."""
    return torch.tensor(
        [f + j for f, count in zip(first, counts, strict=True) for j in range(count)], dtype=torch.int64
    )
