"""top-p, nucleus sampling (Holtzman et al., arXiv 1904.09751): keep the smallest descending prefix whose mass is ≥
top_p.

The comparison is within TOLERANCE of kernels/constants.py. The token that reaches top_p stays, so at least one token
stays. Of equal tokens at the boundary, smaller ids come first. Neutral 1; 0 keeps the largest.

Tokens with p < (1 − top_p) / n can't be in the nucleus. All such tokens together weigh less than 1 − top_p, so the
tokens above them already reach top_p. Only the others are sorted.
"""

from __future__ import annotations

import torch

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    top_p, p = context.slot.params.top_p, candidates.probabilities()
    # halved: rounding can't make this bound wrong
    likely = (p >= 0.5 * (1.0 - top_p) / p.numel()).nonzero().squeeze(1)
    order = likely[torch.sort(candidates.logits[likely], descending=True, stable=True).indices]
    return candidates.reaching(order, top_p)


METHOD = Refinement(apply, lambda params: Stage("top_p", a=params.top_p))
