"""Quadratic smoothing (kalomaze; text-generation-webui, koboldcpp): l' = l_max − d² · (k + q · d) with d = l_max − l.

k = s (3 − c) / 2 and q = s (c − 1) / 2, with factor s and curve c, 1 ≤ c ≤ 3. At c = 1 the curve is a plain parabola.
Neutral: factor 0.
"""

from __future__ import annotations

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    s, c = context.slot.params.smoothing_factor, context.slot.params.smoothing_curve
    k, q = s * (3.0 - c) / 2.0, s * (c - 1.0) / 2.0
    d = candidates.logits.double().max() - candidates.logits.double()
    return candidates.rescaled(-d * d * (k + q * d))


METHOD = Refinement(apply, lambda params: Stage("quadratic", a=params.smoothing_factor, b=params.smoothing_curve))
