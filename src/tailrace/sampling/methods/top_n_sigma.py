"""top-n-sigma (Tang et al., arXiv 2411.07641): keep l ≥ l_max − n · σ.

σ is the population standard deviation of the row's finite edited logits, whatever refinements ran before. The largest
of the remaining logits stays. Temperature does not change the set. Neutral 0 and below.

Tokens on the bound stay, in any arithmetic (if a row has two tokens, both are on it at n = 2): n · σ is multiplied by
SLACK.
"""

from __future__ import annotations

from tailrace.kernels.constants import SIGMA_SLACK
from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    raw = candidates.raw.double()
    bound = min(-context.slot.params.top_n_sigma * context.sigma * SIGMA_SLACK, float(raw.max()))
    return candidates.keep(raw >= bound)


METHOD = Refinement(apply, lambda params: Stage("top_n_sigma", a=params.top_n_sigma))
