"""Tail-free sampling (Phénix and Egan 2019; llama.cpp until 2024): cuts the tail where the probabilities become flat.

It takes the absolute second differences of the descending probabilities, normalised. It keeps the tokens before the
place where their running sum first exceeds z, at least one. Two candidates or fewer: unchanged. Neutral 1.
"""

from __future__ import annotations

import torch

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    if candidates.ids.numel() <= 2:
        return candidates
    order = candidates.descending()
    p = candidates.probabilities()[order]
    curvature = p.diff().diff().abs()
    total = float(curvature.sum())
    curvature = curvature / total if total > 0.0 else torch.full_like(curvature, 1.0 / curvature.numel())
    beyond = (curvature.cumsum(0) > context.slot.params.tfs_z).nonzero()
    return candidates.first(order, int(beyond[0]) if beyond.numel() else p.numel())


METHOD = Refinement(apply, lambda params: Stage("tail_free", a=params.tfs_z))
