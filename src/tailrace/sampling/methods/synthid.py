"""Tournament watermark (SynthID-Text; Dathathri et al., Nature 634, 2024; transformers).

It has `depth` layers of two-candidate tournaments with keyed bits g. Each layer computes p' = p · (1 + g − Σ p g). The
mean over all keys is the original distribution. To keep this for whole texts too, a context that occurred within the
last RECENT places stays unmarked. Runs last. With scheme "transformers" the bits are those of its
SynthIDTextWatermarkLogitsProcessor (sampling/watermark_transformers.py), and contexts come from the output.

It computes logarithms, so that no token is lost to rounding: if all other tokens have bit 1, each layer squares the p
of a token with bit 0. Neutral: watermark None.
"""

from __future__ import annotations

import numpy as np
import torch

from tailrace.kernels.program import Stage, Tournament
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement
from tailrace.sampling.watermark import g_values, keyed_text
from tailrace.sampling.watermark_transformers import sampling_table

RECENT = 1024


def repeated(tokens: list[int], size: int, recent: int) -> bool:
    """Return whether the last `size` tokens also occur earlier within `recent` places."""
    contexts = np.lib.stride_tricks.sliding_window_view(np.array(tokens[-size - recent :]), size)
    return bool((contexts[:-1] == contexts[-1]).all(1).any())


def apply(candidates: Candidates, context: Context) -> Candidates:
    mark, history = context.slot.params.watermark, context.slot.history
    assert mark is not None
    assert history is not None
    tokens = keyed_text(mark, history.tokens, history.num_prompt)
    recent = RECENT if mark.scheme == "tailrace" else mark.context_history_size
    if len(tokens) < mark.context or repeated(tokens, mark.context, recent):
        return candidates
    logp = candidates.logits.double().log_softmax(0)
    for g in g_values(mark, tokens[-mark.context :], candidates.ids):
        without = logp[g == 0].logsumexp(0) - logp.logsumexp(0)  # ln(1 − Σ p g), exact near 0 too
        logp = logp + torch.where(g == 0, without, without.exp().log1p())
    return candidates.rescaled(logp)


def stage(params: SamplingParams) -> Stage:
    mark = params.watermark
    assert mark is not None
    if mark.scheme == "tailrace":
        assert mark.key is not None
        return Stage("tournament", tournament=Tournament(mark.depth, mark.context, RECENT, key=mark.key))
    table = sampling_table(mark.sampling_table_size, mark.sampling_table_seed).numpy()
    keys = np.array(mark.keys, dtype=np.int64)
    return Stage(
        "tournament", tournament=Tournament(keys.size, mark.context, mark.context_history_size, keys=keys, table=table)
    )


METHOD = Refinement(
    apply, stage, wanted=lambda params: params.watermark is not None and params.watermark.kind == "synthid"
)
