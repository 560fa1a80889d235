"""p-less sampling (Tan et al., arXiv 2509.23234): keep p ≥ L = Σ p², the probability that two independent draws agree.

L is exp of minus the Rényi entropy of order 2. p-less-norm keeps p ≥ (V L − 1) / (V − 1), which subtracts the agreement
by chance among V tokens. This bound is never above L, so more tokens stay. No parameter.

L is at most the largest p, so the likeliest token stays. If rounding breaks this (all p equal), the tokens with the
largest p stay. −inf counts as p = 0, also in V. Neutral: false. As in the authors' p_less_samplers.py, p is taken after
the temperature.
"""

from __future__ import annotations

from tailrace.kernels.constants import TOLERANCE
from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    p, vocab = candidates.probabilities(), context.row.numel()
    least = float((p * p).sum())
    if context.slot.params.p_less_norm:
        least = (vocab * least - 1.0) / (vocab - 1.0) if vocab > 1 else 0.0
    return candidates.keep(p >= min(least * (1.0 - TOLERANCE), float(p.max())))


METHOD = Refinement(apply, lambda params: Stage("p_less", k=int(params.p_less_norm)))
