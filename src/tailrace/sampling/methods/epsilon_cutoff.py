"""Epsilon sampling (Hewitt et al., arXiv 2210.15191): keep p ≥ ε, at least the likeliest. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    return candidates.near(math.log(context.slot.params.epsilon_cutoff) + candidates.log_mass())


METHOD = Refinement(apply, lambda params: Stage("epsilon", a=params.epsilon_cutoff))
