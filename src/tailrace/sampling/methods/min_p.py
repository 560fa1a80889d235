"""min-p (Nguyen et al., arXiv 2407.01082): keep p ≥ min_p · p_max, that is l ≥ l_max + ln(min_p). The likeliest token stays. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    # in float64: at min_p = 1 only equals of the maximum may stay, and a float32 sum could round one away
    logits = survivors.logits.double()
    return survivors.keep(logits >= logits.max() + math.log(context.slot.params.min_p))


MIN_P = Refinement(lambda params: params.min_p > 0.0, apply, lambda params: Stage("min_p", a=params.min_p))
