"""Locally typical sampling (Meister et al., arXiv 2202.00666): order by |−ln p − H|, keep the smallest prefix whose
mass is ≥ typical_p; the token that crosses stays. Equal ones: smaller ids first. May drop the likeliest token. Neutral
1."""

from __future__ import annotations

import torch

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates, Context
from tailrace.sampling.methods.base import Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    logp = candidates.logits.double().log_softmax(0)
    distance = (-logp - candidates.entropy()).abs().float()
    order = torch.sort(distance, stable=True).indices
    p = logp.exp()[order]
    before = p.cumsum(0) - p
    kept = candidates.first(order, int((before < context.slot.params.typical_p).sum()))
    return kept.rescaled(kept.logits)


METHOD = Refinement(apply, lambda params: Stage("typical", a=params.typical_p))
