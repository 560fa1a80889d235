"""No-repeat n-gram: a token that would complete an n-gram of the prompt or output becomes −inf (transformers'
NoRepeatNGramLogitsProcessor).

encoder_no_repeat_ngram_size does the same for n-grams of the prompt (EncoderNoRepeatNGramLogitsProcessor). Cost per
token: the earlier occurrences of the last one. Neutral: 0.
"""

from __future__ import annotations

import numpy as np

from tailrace.kernels.program import Ban, ascending
from tailrace.sampling.history import History
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Ban]:
    params, history = slot.params, slot.history
    assert history is not None
    found = [
        followers(history, params.no_repeat_ngram_size, len(history.tokens)),
        followers(history, params.encoder_no_repeat_ngram_size, history.num_prompt),
    ]
    ids = ascending(np.concatenate(found))
    return [Ban(ids)] if ids.size else []


def followers(history: History, size: int, end: int) -> np.ndarray:
    """Return the tokens that would complete an n-gram of this size that ends before the place `end`. Return no tokens
    for size 0."""
    assert history.ngrams is not None
    if size == 0:
        return np.empty(0, dtype=np.int64)
    if size == 1:
        return history.ngrams.tokens[:end]
    places, lengths = history.ngrams.find_agreements()
    return history.ngrams.tokens[places[(lengths >= size - 1) & (places + 1 < end)] + 1]


METHOD = LogitsEdit(edits, moves=always, recalls=always)
