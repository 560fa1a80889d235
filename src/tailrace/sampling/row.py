"""One row on its way from logits to a token: what edits and refinements work on.

Knows nothing of batches: a row is computed from its own logits and its own request alone, which is how "your neighbours
don't matter" holds by construction in this backend.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Survivors:
    """The tokens still in play. ids: int64 [n], ascending; logits: float32 [n], finite. n ≥ 1."""

    ids: torch.Tensor
    logits: torch.Tensor

    @staticmethod
    def of(row: torch.Tensor) -> Survivors:
        """All entries of a row [V] that are not −inf."""
        ids = row.isfinite().nonzero().squeeze(1)
        return Survivors(ids, row[ids])

    def keep(self, where: torch.Tensor) -> Survivors:
        """Those where the mask (bool [n]) or the indices (int64, ascending) say."""
        return Survivors(self.ids[where], self.logits[where])

    def probabilities(self) -> torch.Tensor:
        """Softmax over the survivors, float32 [n]."""
        return self.logits.softmax(0)

    def descending(self) -> torch.Tensor:
        """Indices in order: larger logit first, then smaller token id."""
        return torch.sort(self.logits, descending=True, stable=True).indices
