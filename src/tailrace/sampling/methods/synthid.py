"""Tournament watermark (SynthID-Text; Dathathri et al., Nature 634, 2024; transformers): `depth` layers of two-candidate
tournaments with keyed bits g: p' = p · (1 + g − Σ p g) in each. Averaged over keys it keeps the distribution; so that this holds for
whole texts too, a context that was there before, within the last RECENT places, is left unmarked. Runs last. With scheme "transformers" the
bits are those of its SynthIDTextWatermarkLogitsProcessor (sampling/watermark_transformers.py), and contexts are the output's. Neutral:
watermark None."""

from __future__ import annotations

import numpy as np

from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.survivors import Context, Survivors
from tailrace.sampling.watermark import g_values

RECENT = 1024


def repeated(tokens: list[int], size: int, recent: int) -> bool:
    """Whether the last `size` tokens stand somewhere before, too, within so many places."""
    contexts = np.lib.stride_tricks.sliding_window_view(np.array(tokens[-size - recent :]), size)
    return bool((contexts[:-1] == contexts[-1]).all(1).any())


def apply(survivors: Survivors, context: Context) -> Survivors:
    mark, history = context.slot.params.watermark, context.slot.history
    assert mark is not None
    assert history is not None
    tokens, recent = history.tokens, RECENT
    if mark.scheme == "transformers":
        tokens, recent = [0] * mark.context + tokens[history.num_prompt :], mark.context_history_size
    if len(tokens) < mark.context or repeated(tokens, mark.context, recent):
        return survivors
    p = survivors.probabilities()
    for g in g_values(mark, tokens[-mark.context :], survivors.ids):
        p = p * (1.0 + g - (p * g).sum())
    kept = survivors.keep(p > 0.0)
    return kept.rescaled(p[p > 0.0].log())


SYNTHID = Refinement(lambda params: params.watermark is not None and params.watermark.kind == "synthid", apply)
