"""top-k (Fan et al., arXiv 1805.04833): keep the k largest. At the boundary the smaller ids of equal logits stay, so
exactly min(k, n) tokens stay. Neutral 0 and −1."""

from __future__ import annotations

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    k = context.slot.params.top_k
    if k >= candidates.ids.numel():
        return candidates
    return candidates.first(candidates.likeliest(k), k)


METHOD = Refinement(apply, lambda params: Stage("top_k", k=params.top_k))
