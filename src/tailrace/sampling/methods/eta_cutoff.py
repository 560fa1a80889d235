"""Eta sampling (Hewitt et al., arXiv 2210.15191): keep p ≥ min(η, √η · e^−H), at least the likeliest. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    log_eta = math.log(context.slot.params.eta_cutoff)
    return survivors.near(min(log_eta, 0.5 * log_eta - survivors.entropy()) + survivors.log_mass())


ETA_CUTOFF = Refinement(lambda params: params.eta_cutoff > 0.0, apply, lambda params: Stage("eta", a=params.eta_cutoff))
