"""top-p, nucleus sampling (Holtzman et al., arXiv 1904.09751): keep the smallest descending prefix whose mass is ≥
top_p (within TOLERANCE of kernels/constants.py); the token that crosses stays, at least one does. Equal ones at the
boundary: smaller ids first. Neutral 1; 0 keeps the largest.

A token with p < (1 − top_p) / n can't be in the
nucleus: all such together weigh less than 1 − top_p, so what is above them already reaches top_p. Only the others are
sorted."""

from __future__ import annotations

import torch

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    top_p, p = context.slot.params.top_p, candidates.probabilities()
    # halved: a bound that rounding can't make unsound
    likely = (p >= 0.5 * (1.0 - top_p) / p.numel()).nonzero().squeeze(1)
    order = likely[torch.sort(candidates.logits[likely], descending=True, stable=True).indices]
    return candidates.reaching(order, top_p)


METHOD = Refinement(apply, lambda params: Stage("top_p", a=params.top_p))
