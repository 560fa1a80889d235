"""top-H (Potraghloo et al., arXiv 2509.02510; transformers): limits the entropy of the kept tokens.

It renormalises the 100 likeliest tokens; their entropy is H. It keeps the longest descending prefix whose share −Σ p ln
p is at most h · H, at least one token. Off at 0 (at 1 the 100 likeliest stay).
"""

from __future__ import annotations

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement

CANDIDATES = 100


def apply(candidates: Candidates, context: Context) -> Candidates:
    order = candidates.likeliest(CANDIDATES)
    logp = candidates.logits[order].double().log_softmax(0)
    share = -(logp.exp() * logp)
    kept = int((share.cumsum(0) <= context.slot.params.top_h * share.sum() * (1.0 + 1e-12)).sum())
    return candidates.first(order, kept)


METHOD = Refinement(apply, lambda params: Stage("top_h", a=params.top_h))
