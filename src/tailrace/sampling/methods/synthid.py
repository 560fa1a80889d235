"""Tournament watermark (SynthID-Text; Dathathri et al., Nature 634, 2024; transformers): `depth` layers of
two-candidate tournaments with keyed bits g: p' = p · (1 + g − Σ p g) in each. Averaged over keys it keeps the
distribution; so that this holds for whole texts too, a context that was there before, within the last RECENT places, is
left unmarked. Runs last. With scheme "transformers" the bits are those of its SynthIDTextWatermarkLogitsProcessor
(sampling/watermark_transformers.py), and contexts are the output's.
In logarithms, so that no token is lost to rounding: where all others have a 1, one with a 0 has its p squared, layer
after layer. Neutral: watermark None."""

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
    """Whether the last `size` tokens stand somewhere before, too, within so many places."""
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
        without = logp[g == 0].logsumexp(0) - logp.logsumexp(0)  # ln of 1 − Σ p g, also where next to nothing is left
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
