"""Dynamic temperature (kalomaze; koboldcpp, llama.cpp's dynatemp): T = low + (high − low) · (H / ln n)^exponent, low =
max(0, temperature − range), high = temperature + range, n survivors with entropy H. One survivor: unchanged. T = 0: only the
largest stay. Replaces the plain temperature. Neutral: range 0."""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    params, n = context.slot.params, survivors.ids.numel()
    if n == 1:
        return survivors
    low, high = max(0.0, params.temperature - params.dynatemp_range), params.temperature + params.dynatemp_range
    share = max(0.0, survivors.entropy()) / math.log(n)
    temperature = low + (high - low) * share**params.dynatemp_exponent
    if temperature <= 0.0:
        return survivors.keep(survivors.logits == survivors.logits.max())
    return survivors.rescaled(survivors.logits.double() / temperature)


DYNATEMP = Refinement(
    lambda params: params.dynatemp_range > 0.0,
    apply,
    lambda params: Stage(
        "dynamic_temperature", a=params.temperature, b=params.dynatemp_range, c=params.dynatemp_exponent
    ),
)
