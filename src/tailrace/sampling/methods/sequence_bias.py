"""Sequence bias: like bad words, but adds a bias to the last id instead of banning it (transformers'
SequenceBiasLogitsProcessor). Biases on the same id add up. Neutral: ()."""

from __future__ import annotations

import numpy as np

from tailrace.kernels.program import Add
from tailrace.params import SamplingParams
from tailrace.sampling.history import completed_by
from tailrace.sampling.slot import LogitsEdit, Slot


def edits(slot: Slot) -> list[Add]:
    tokens = slot.history.tokens if slot.history else []
    total: dict[int, float] = {}
    for word, bias in slot.params.sequence_bias:
        if (id := completed_by(word, tokens)) is not None:
            total[id] = total.get(id, 0.0) + bias
    ids = sorted(total)
    return [Add(np.array(ids, dtype=np.uint32), np.array([total[i] for i in ids], dtype=np.float32))] if ids else []


def longer(params: SamplingParams) -> bool:
    """Return whether a sequence has more than one id, so that it depends on the tokens before."""
    return any(len(word) > 1 for word, _ in params.sequence_bias)


METHOD = LogitsEdit(edits, moves=longer, recalls=longer)
