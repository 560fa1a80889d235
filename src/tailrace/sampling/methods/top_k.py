"""top-k (Fan et al., arXiv 1805.04833): keep the k largest; of equal ones at the boundary the smaller ids, so exactly min(k, n) stay.
Neutral 0 and −1."""

from __future__ import annotations

from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors


def apply(survivors: Survivors, context: Context) -> Survivors:
    k = context.slot.params.top_k
    if k >= survivors.ids.numel():
        return survivors
    return survivors.first(survivors.likeliest(k), k)


TOP_K = Refinement(lambda params: params.top_k > 0, apply, lambda params: Stage("top_k", k=params.top_k))
