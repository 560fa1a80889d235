"""top-n-sigma (Tang et al., arXiv 2411.07641): keep l ≥ l_max − n · σ, with σ the population standard deviation of the row's finite edited
logits, whatever refinements ran before; the largest of what they left stays. Temperature does not change the set. Neutral 0 and below."""

from __future__ import annotations

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    raw = survivors.raw.double()
    bound = min(-context.slot.params.top_n_sigma * context.sigma, float(raw.max()))
    return survivors.keep(raw >= bound)


TOP_N_SIGMA = Refinement(
    lambda params: params.top_n_sigma > 0.0, apply, lambda params: Stage("top_n_sigma", a=params.top_n_sigma)
)
