"""top-k: keep the k largest; of equal ones at the boundary the smaller ids, so exactly min(k, n) stay. Neutral 0 and −1."""

from __future__ import annotations

import torch

from tailrace.params import SamplingParams
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.row import Survivors


def apply(survivors: Survivors, params: SamplingParams) -> Survivors:
    k = params.top_k
    if k >= survivors.ids.numel():
        return survivors
    boundary = torch.topk(survivors.logits, k).values[-1]
    candidates = survivors.keep(survivors.logits >= boundary)  # k, and what ties with the last
    return candidates.keep(candidates.descending()[:k].sort().values)


TOP_K = Refinement(lambda params: params.top_k > 0, apply)
