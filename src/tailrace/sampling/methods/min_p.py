"""min-p (Nguyen et al., arXiv 2407.01082): keep p ≥ min_p · p_max, that is l ≥ l_max + ln(min_p). The likeliest token
stays. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    return candidates.near(math.log(context.slot.params.min_p))


METHOD = Refinement(apply, lambda params: Stage("min_p", a=params.min_p))
