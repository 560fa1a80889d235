"""XTC, "exclude top choices" (p-e-w, text-generation-webui pull request 6335): removes the likeliest tokens with a
given probability.

With probability xtc_probability it removes all tokens with p ≥ xtc_threshold except the least likely of them. If fewer
than two tokens qualify, it removes nothing. The coin is keyed by (seed, position). EOS is never removed and does not
count among these tokens. Moves the argmax. Neutral: probability 0.
"""

from __future__ import annotations

import torch

from tailrace import kernels
from tailrace.kernels.constants import TOLERANCE, XTC_STREAM
from tailrace.kernels.program import Stage
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement


def apply(candidates: Candidates, context: Context) -> Candidates:
    slot = context.slot
    if kernels.uniform(slot.key, context.position, XTC_STREAM) >= slot.params.xtc_probability:
        return candidates
    safe = torch.isin(candidates.ids, torch.tensor(slot.eos_token_ids, dtype=torch.int64))
    top = (candidates.probabilities() >= slot.params.xtc_threshold * (1.0 - TOLERANCE)) & ~safe
    if int(top.sum()) < 2:
        return candidates
    order = candidates.descending()
    least = order[top[order].nonzero()[-1]]
    top[least] = False
    kept = candidates.keep(~top)
    return kept.rescaled(kept.logits)


METHOD = Refinement(apply, lambda params: Stage("xtc", a=params.xtc_threshold, b=params.xtc_probability))
