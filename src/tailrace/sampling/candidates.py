"""One row on its way from logits to a token, in the reference backend: what refinements work on.

Knows nothing of batches: a row is computed from its own logits and its own request alone, which is how "your neighbours
don't matter" holds by construction here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tailrace.kernels.constants import TOLERANCE


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens still in play. ids: int64 [n], ascending; raw: float32 [n], their edited logits less the row's
    largest; logits: float32 [n], what the refinements have made of them; finite. n ≥ 1."""

    ids: torch.Tensor
    raw: torch.Tensor
    logits: torch.Tensor

    @staticmethod
    def of(row: torch.Tensor) -> Candidates:
        """All entries of a row [V] that are not −inf, nor so far below the largest that the distance is."""
        raw = row - row.max()
        ids = raw.isfinite().nonzero().squeeze(1)
        return Candidates(ids, raw[ids], raw[ids])

    def keep(self, where: torch.Tensor) -> Candidates:
        """Those where the mask (bool [n]) or the indices (int64, ascending) say."""
        return Candidates(self.ids[where], self.raw[where], self.logits[where])

    def near(self, depth: float) -> Candidates:
        """Those that lie no more than −depth below the largest, within the tolerance; at depth 0 and above the largest
        and its equals. Of logits, for of probabilities rounding makes some equal that are not."""
        logits = self.logits.double()
        return self.keep(logits - logits.max() >= min(depth - TOLERANCE, 0.0))

    def reaching(self, order: torch.Tensor, share: float) -> Candidates:
        """Return the shortest prefix of this order of indices whose probabilities reach `share`, within the tolerance;
        at least one token."""
        p = self.probabilities()[order]
        before = p.cumsum(0) - p  # mass ahead of each token
        return self.first(order, int((before < share * (1.0 - TOLERANCE)).sum()))

    def log_mass(self) -> float:
        """ln Σ e^(l − l_max): −ln of the largest probability."""
        logits = self.logits.double()
        return float((logits - logits.max()).exp().sum().log())

    def first(self, order: torch.Tensor, count: int) -> Candidates:
        """The first `count`, at least one, in this order of indices."""
        return self.keep(order[: max(1, count)].sort().values)

    def rescaled(self, logits: torch.Tensor) -> Candidates:
        """The same tokens with other logits (float64 or float32), relative to the largest; those that became −inf are
        gone."""
        moved = (logits.double() - logits.double().max()).float()
        made, there = Candidates(self.ids, self.raw, moved), moved.isfinite()
        return made if bool(there.all()) else made.keep(there)

    def probabilities(self) -> torch.Tensor:
        """Softmax over the candidates, float64 [n]."""
        return self.logits.double().softmax(0)

    def entropy(self) -> float:
        """Of their distribution, nats."""
        logp = self.logits.double().log_softmax(0)
        return float(-(logp.exp() * logp).sum())

    def likeliest(self, count: int) -> torch.Tensor:
        """The first `count` of `descending`, without sorting the others."""
        if count >= self.ids.numel():
            return self.descending()
        near = (self.logits >= torch.topk(self.logits, count).values[-1]).nonzero().squeeze(1)
        return near[torch.sort(self.logits[near], descending=True, stable=True).indices][:count]

    def descending(self) -> torch.Tensor:
        """Indices in order: larger logit first, then smaller token id."""
        return torch.sort(self.logits, descending=True, stable=True).indices
