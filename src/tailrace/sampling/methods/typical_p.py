"""Locally typical sampling (Meister et al., arXiv 2202.00666): order by |−ln p − H|, keep the smallest prefix whose
mass is ≥ typical_p.

The comparison is within TOLERANCE of kernels/constants.py. The token that reaches typical_p stays. Of equal tokens,
smaller ids come first. May drop the likeliest token. Neutral 1.
"""

from __future__ import annotations

import torch

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    logp = candidates.logits.double().log_softmax(0)
    distance = (-logp - candidates.entropy()).abs().float()
    kept = candidates.reaching(torch.sort(distance, stable=True).indices, context.slot.params.typical_p)
    return kept.rescaled(kept.logits)


METHOD = Refinement(apply, lambda params: Stage("typical", a=params.typical_p))
