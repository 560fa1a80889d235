"""top-p, nucleus sampling (arXiv 1904.09751): keep the smallest descending prefix whose mass is ≥ top_p; the token that
crosses stays, at least one does. Equal ones at the boundary: smaller ids first. Neutral 1; 0 keeps the largest.

If rounding keeps the sum below top_p (1 − 1e-7), everything stays. A token with p < (1 − top_p) / n can't be in the
nucleus: all such together weigh less than 1 − top_p, so what is above them already reaches top_p. Only the others are sorted.
"""

from __future__ import annotations

import torch

from tailrace.params import SamplingParams
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.row import Survivors


def apply(survivors: Survivors, params: SamplingParams) -> Survivors:
    p = survivors.logits.double().softmax(0)
    # halved: a bound that rounding can't make unsound
    candidates = (p >= 0.5 * (1.0 - params.top_p) / p.numel()).nonzero().squeeze(1)
    order = candidates[torch.sort(survivors.logits[candidates], descending=True, stable=True).indices]
    before = p[order].cumsum(0) - p[order]  # mass above each token
    kept = int((before < params.top_p).sum())
    return survivors.keep(order[: max(1, kept)].sort().values)


TOP_P = Refinement(lambda params: params.top_p < 1.0, apply)
