"""Green-list watermark (KGW; Kirchenbauer et al., arXiv 2301.10226): adds δ to a share γ of the vocabulary.

A key and the tokens just before (left hash) select the share. The owner of the key counts green tokens
(sampling/watermark.py). With scheme "transformers" the lists are those of its WatermarkLogitsProcessor
(sampling/watermark_transformers.py). Neutral: watermark None.
"""

from __future__ import annotations

import numpy as np

from tailrace.kernels.program import Add
from tailrace.params import SamplingParams
from tailrace.sampling.slot import LogitsEdit, Slot, always
from tailrace.sampling.watermark import green_list


def edits(slot: Slot) -> list[Add]:
    mark, history = slot.params.watermark, slot.history
    assert mark is not None
    assert history is not None
    if len(history.tokens) < mark.context:
        return []
    ids = green_list(mark, history.tokens[-mark.context :], slot.vocab_size)
    return [Add(ids, np.full(ids.size, mark.delta, dtype=np.float32))]


def wanted(params: SamplingParams) -> bool:
    return params.watermark is not None and params.watermark.kind == "kgw"


METHOD = LogitsEdit(edits, wanted=wanted, moves=always, recalls=always)
