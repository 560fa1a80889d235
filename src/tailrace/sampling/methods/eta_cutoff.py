"""Eta sampling (Hewitt et al., arXiv 2210.15191): keep p ≥ min(η, √η · e^−H), at least the likeliest. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    log_eta = math.log(context.slot.params.eta_cutoff)
    return candidates.near(min(log_eta, 0.5 * log_eta - candidates.entropy()) + candidates.log_mass())


METHOD = Refinement(apply, lambda params: Stage("eta", a=params.eta_cutoff))
