"""Min-k sampling (Ding et al., arXiv 2604.11012): cuts the sorted logits after their steepest relative fall.

Let l₁ ≥ l₂ ≥ … be the logits, and R the row's range: the largest minus the smallest finite edited logit. The fall after
place i weighs (lᵢ − lᵢ₊₁) / R / i. Let c be the place of the heaviest fall, the first of equal ones. The max(c, ⌊τ /
R⌋) largest logits stay. ⌊τ / R⌋ matters if the row is nearly flat.

The logits are those of the remaining tokens before any temperature, whatever refinements ran. So temperature does not
change the set, as the paper proves for its own order. The likeliest token stays. As in the authors' code, 1e-8 is added
to R. Neutral: false; τ is 3 as in the paper.

The row must be sorted down to the place beyond which no fall can matter. For real rows 256 tokens suffice; otherwise
all are sorted.
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
    """Return the place of the heaviest fall, counted from 1."""
    n, best = raw.ids.numel(), 0.0
    if n < 2:
        return 1
    for count in (min(LOOKED_AT, n), n):
        sorted_logits = raw.logits[raw.likeliest(count)].double()
        falls = (sorted_logits[:-1] - sorted_logits[1:]) / torch.arange(1, count)
        best = float(falls.max())
        # no fall further down can exceed the remaining distance
        if best >= float(sorted_logits[-1] - raw.logits.double().min()) / count:
            break
    return int((falls == best).nonzero()[0]) + 1


METHOD = Refinement(apply, lambda params: Stage("min_k", a=params.min_k_tau))
