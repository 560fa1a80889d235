"""top-a (koboldcpp; BlinkDL's RWKV-LM): keep p ≥ a · p_max². The likeliest token stays. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    return candidates.near(math.log(context.slot.params.top_a) - candidates.log_mass())


METHOD = Refinement(apply, lambda params: Stage("top_a", a=params.top_a))
