"""Tournament watermark (SynthID-Text; Dathathri et al., Nature 634, 2024; transformers): `depth` layers of two-candidate
tournaments with keyed bits g: p' = p · (1 + g − Σ p g) in each. Averaged over keys it keeps the distribution. Runs last.
Neutral: watermark None."""

from __future__ import annotations

from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors
from tailrace.sampling.watermark import g_values


def apply(survivors: Survivors, context: Context) -> Survivors:
    mark, history = context.slot.params.watermark, context.slot.history
    assert mark is not None
    assert history is not None
    if len(history.tokens) < mark.context:
        return survivors
    p = survivors.probabilities()
    for g in g_values(mark, history.tokens[-mark.context :], survivors.ids):
        p = p * (1.0 + g - (p * g).sum())
    kept = survivors.keep(p > 0.0)
    return kept.rescaled(p[p > 0.0].log())


SYNTHID = Refinement(lambda params: params.watermark is not None and params.watermark.kind == "synthid", apply)
