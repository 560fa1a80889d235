"""One row between its logits and its token, in the reference backend. Refinements work on candidates.

A row is computed from its own logits and its own request only. So other requests of the batch can't change its result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tailrace.kernels.constants import TOLERANCE


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that can still be drawn. All numbers are finite; n ≥ 1.

    - ids: int64 [n], ascending.
    - raw: float32 [n], the edited logits minus the row's largest logit.
    - logits: float32 [n], the logits after the refinements so far.
    """

    ids: torch.Tensor
    raw: torch.Tensor
    logits: torch.Tensor

    @staticmethod
    def of(row: torch.Tensor) -> Candidates:
        """Return the entries of a row [V] whose distance to the largest logit is finite."""
        raw = row - row.max()
        ids = raw.isfinite().nonzero().squeeze(1)
        return Candidates(ids, raw[ids], raw[ids])

    def keep(self, where: torch.Tensor) -> Candidates:
        """Return the candidates that the mask (bool [n]) or the indices (int64, ascending) select."""
        return Candidates(self.ids[where], self.raw[where], self.logits[where])

    def near(self, depth: float) -> Candidates:
        """Return the candidates whose logit is at least the largest plus `depth`, within the tolerance. From depth 0
        on, return those with the largest logit.

        It compares logits, because rounding makes some different logits equal probabilities.
        """
        logits = self.logits.double()
        return self.keep(logits - logits.max() >= min(depth - TOLERANCE, 0.0))

    def reaching(self, order: torch.Tensor, share: float) -> Candidates:
        """Return the shortest prefix of this order of indices whose probabilities reach `share`, within the tolerance.
        The prefix has at least one token."""
        p = self.probabilities()[order]
        before = p.cumsum(0) - p  # mass ahead of each token
        return self.first(order, int((before < share * (1.0 - TOLERANCE)).sum()))

    def log_mass(self) -> float:
        """Return ln Σ e^(l − l_max), which is −ln of the largest probability."""
        logits = self.logits.double()
        return float((logits - logits.max()).exp().sum().log())

    def first(self, order: torch.Tensor, count: int) -> Candidates:
        """Return the first `count` candidates in this order of indices, at least one."""
        return self.keep(order[: max(1, count)].sort().values)

    def rescaled(self, logits: torch.Tensor) -> Candidates:
        """Return the same tokens with other logits (float64 or float32), relative to the largest. Tokens whose logit
        became −inf are removed."""
        moved = (logits.double() - logits.double().max()).float()
        made, there = Candidates(self.ids, self.raw, moved), moved.isfinite()
        return made if bool(there.all()) else made.keep(there)

    def probabilities(self) -> torch.Tensor:
        """Return the softmax over the candidates, float64 [n]."""
        return self.logits.double().softmax(0)

    def entropy(self) -> float:
        """Return the entropy of the candidates' distribution in nats."""
        logp = self.logits.double().log_softmax(0)
        return float(-(logp.exp() * logp).sum())

    def likeliest(self, count: int) -> torch.Tensor:
        """Return the first `count` of `descending`, without sorting the others."""
        if count >= self.ids.numel():
            return self.descending()
        near = (self.logits >= torch.topk(self.logits, count).values[-1]).nonzero().squeeze(1)
        return near[torch.sort(self.logits[near], descending=True, stable=True).indices][:count]

    def descending(self) -> torch.Tensor:
        """Return the indices in order: the larger logit first, then the smaller token id."""
        return torch.sort(self.logits, descending=True, stable=True).indices
