"""XTC, "exclude top choices" (p-e-w, text-generation-webui pull request 6335): with xtc_probability, of the tokens with p ≥
xtc_threshold all but the least likely are removed; fewer than two such: nothing happens. The coin is keyed by (seed,
position). EOS is never removed and does not count among them. Moves the argmax. Neutral: probability 0."""

from __future__ import annotations

import torch

from tailrace import kernels
from tailrace.kernels.program import Stage
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors

XTC_STREAM = 3  # of the noise; csrc/refine.cpp


def apply(survivors: Survivors, context: Context) -> Survivors:
    slot = context.slot
    if kernels.uniform(slot.key, context.position, XTC_STREAM) >= slot.params.xtc_probability:
        return survivors
    safe = torch.isin(survivors.ids, torch.tensor(slot.eos_token_ids, dtype=torch.int64))
    top = (survivors.probabilities() >= slot.params.xtc_threshold) & ~safe
    if int(top.sum()) < 2:
        return survivors
    order = survivors.descending()
    least = order[top[order].nonzero()[-1]]
    top[least] = False
    kept = survivors.keep(~top)
    return kept.rescaled(kept.logits)


XTC = Refinement(
    lambda params: params.xtc_probability > 0.0,
    apply,
    lambda params: Stage("xtc", a=params.xtc_threshold, b=params.xtc_probability),
)
