"""min-p (arXiv 2407.01082): keep p ≥ min_p · p_max, that is l ≥ l_max + ln(min_p). The likeliest token stays. Neutral 0."""

from __future__ import annotations

import math

from tailrace.params import SamplingParams
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.row import Survivors


def apply(survivors: Survivors, params: SamplingParams) -> Survivors:
    # in float64: at min_p = 1 only equals of the maximum may stay, and a float32 sum could round one away
    threshold = survivors.logits.max().double() + math.log(params.min_p)
    return survivors.keep(survivors.logits.double() >= threshold)


MIN_P = Refinement(lambda params: params.min_p > 0.0, apply)
