"""Eta sampling (Hewitt et al., arXiv 2210.15191): keep p ≥ min(η, √η · e^−H), at least the likeliest. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    eta, p = context.slot.params.eta_cutoff, survivors.probabilities()
    least = min(eta, math.sqrt(eta) * math.exp(-survivors.entropy()))
    return survivors.keep(p >= min(least, float(p.max())))


ETA_CUTOFF = Refinement(lambda params: params.eta_cutoff > 0.0, apply, lambda params: Stage("eta", a=params.eta_cutoff))
