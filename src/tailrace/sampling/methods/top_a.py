"""top-a (koboldcpp; BlinkDL's RWKV-LM): keep p ≥ a · p_max². The likeliest token stays. Neutral 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    return survivors.near(math.log(context.slot.params.top_a) - survivors.log_mass())


TOP_A = Refinement(lambda params: params.top_a > 0.0, apply, lambda params: Stage("top_a", a=params.top_a))
