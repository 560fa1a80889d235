"""One step's rows, frozen: which logits row belongs to which slot and position. Built once, at the top of the step.

Symbols: N requests in the step, S slots, K drafts at most, R = Σ(kᵢ + 1) rows, L logits rows, V vocabulary.
Plain decoding is verifying zero drafts: every request has one row, R = N.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """slot:      int64 [R], the row's entry in Slots.
    source:    int64 [R], the row's logits: several rows may share one (n > 1 right after the shared prefill).
    position:  int64 [R], index, within prompt + output, of the token that this row decides: the noise's counter.
    start:     int64 [N + 1], request i owns rows start[i] … start[i + 1] − 1: its drafts in order, then the bonus row.
    draft:     int64 [R], the draft token this row verifies; −1 on bonus rows.
    """

    slot: torch.Tensor
    source: torch.Tensor
    position: torch.Tensor
    start: torch.Tensor
    draft: torch.Tensor

    @staticmethod
    def plain(slot: list[int], source: list[int], position: list[int]) -> Rows:
        """Rows of a step without drafts: one per request."""
        n = len(slot)
        return Rows(
            slot=torch.tensor(slot, dtype=torch.int64),
            source=torch.tensor(source, dtype=torch.int64),
            position=torch.tensor(position, dtype=torch.int64),
            start=torch.arange(n + 1),
            draft=torch.full((n,), -1, dtype=torch.int64),
        )

    @property
    def num_requests(self) -> int:
        """N."""
        return self.start.numel() - 1
