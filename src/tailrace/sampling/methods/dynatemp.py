"""Dynamic temperature (kalomaze; koboldcpp, llama.cpp's dynatemp): T = low + (high − low) · (H / ln n)^exponent.

low = max(0, temperature − range) and high = temperature + range. H is the entropy of the n candidates. A single
candidate stays unchanged. T = 0 keeps only the largest logits. Replaces the plain temperature. Neutral: range 0.
"""

from __future__ import annotations

import math

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    params, n = context.slot.params, candidates.ids.numel()
    if n == 1:
        return candidates
    low, high = max(0.0, params.temperature - params.dynatemp_range), params.temperature + params.dynatemp_range
    share = max(0.0, candidates.entropy()) / math.log(n)
    temperature = low + (high - low) * share**params.dynatemp_exponent
    if temperature <= 0.0:
        return candidates.keep(candidates.logits == candidates.logits.max())
    return candidates.rescaled(candidates.logits.double() / temperature)


METHOD = Refinement(
    apply,
    lambda params: Stage(
        "dynamic_temperature", a=params.temperature, b=params.dynatemp_range, c=params.dynatemp_exponent
    ),
)
