"""Sequence bias: as with bad words, but a bias is added to the last id instead of banning it (transformers'
SequenceBiasLogitsProcessor); several that end in the same id add up. Neutral: ()."""

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
    """Some sequence depends on what was said before."""
    return any(len(word) > 1 for word, _ in params.sequence_bias)


METHOD = LogitsEdit(edits, moves=longer, recalls=longer)
