"""Epsilon sampling (Hewitt et al., arXiv 2210.15191): keep p ≥ ε, at least the likeliest. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    return survivors.near(math.log(context.slot.params.epsilon_cutoff) + survivors.log_mass())


EPSILON_CUTOFF = Refinement(
    lambda params: params.epsilon_cutoff > 0.0, apply, lambda params: Stage("epsilon", a=params.epsilon_cutoff)
)
