"""Temperature: l / T. T = 1 is neutral. T = 0 is greedy and never reaches this method.

The method divides the distance from the maximum. So with a tiny T (1e-45) other tokens overflow to −inf, never to +inf.
Their probability is 0 in any arithmetic, and they leave the candidates.
"""

from __future__ import annotations

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    return candidates.rescaled(candidates.logits.double() / context.slot.params.temperature)


METHOD = Refinement(
    apply,
    lambda params: Stage("temperature", a=params.temperature),
    wanted=lambda params: params.temperature not in (0.0, 1.0) and params.dynatemp_range == 0.0,
)
