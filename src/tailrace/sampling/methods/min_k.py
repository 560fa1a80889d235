"""Min-k sampling (Ding et al., arXiv 2604.11012): with the logits sorted, l₁ ≥ l₂ ≥ …, and R the row's range, the
largest less the least finite edited logit, the fall after place i weighs (lᵢ − lᵢ₊₁) / R / i. The k likeliest stay, k
the larger of the place of the heaviest fall (of equal ones the first) and ⌊τ / R⌋, which matters where the row is
nearly flat.

The logits are those before any temperature, whatever refinements ran, of the tokens that are left; so temperature does
not change the set, as the paper proves of its own order. The likeliest stays. 1e-8 is added to R, as in the authors'
code. Neutral: false; τ 3 as in the paper.

The row must be sorted down to where no fall can matter. Of a real row 256 tokens tell; else all are sorted.
"""

from __future__ import annotations

import torch

from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement

LOOKED_AT = 256


def apply(candidates: Candidates, context: Context) -> Candidates:
    raw, n = Candidates(candidates.ids, candidates.raw, candidates.raw), candidates.ids.numel()
    finite = context.row[context.row.isfinite()].double()
    k = max(cliff(raw), int(min(context.slot.params.min_k_tau / (float(finite.max() - finite.min()) + 1e-8), n)))
    return candidates.first(raw.likeliest(k), k)


def cliff(raw: Candidates) -> int:
    """The place of the heaviest fall, from 1."""
    n, best = raw.ids.numel(), 0.0
    if n < 2:
        return 1
    for count in (min(LOOKED_AT, n), n):
        sorted_logits = raw.logits[raw.likeliest(count)].double()
        falls = (sorted_logits[:-1] - sorted_logits[1:]) / torch.arange(1, count)
        best = float(falls.max())
        # no fall further down can be longer than all that is left
        if best >= float(sorted_logits[-1] - raw.logits.double().min()) / count:
            break
    return int((falls == best).nonzero()[0]) + 1


METHOD = Refinement(apply, lambda params: Stage("min_k", a=params.min_k_tau))
