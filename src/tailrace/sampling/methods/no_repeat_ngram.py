"""No-repeat n-gram: a token that would complete an n-gram already present in prompt or output becomes −inf (transformers'
NoRepeatNGramLogitsProcessor). Cost per token: the earlier occurrences of the last one. Neutral: 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.kernels.program import Ban, ascending
from tailrace.params import SamplingParams
from tailrace.sampling.methods.base import EditMethod

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def edits(slot: Slot) -> list[Ban]:
    history = slot.history
    assert history is not None
    assert history.ngrams is not None
    before = slot.params.no_repeat_ngram_size - 1
    if before == 0:
        return [Ban(ascending([token for token, places in history.ngrams.places.items() if places]))]
    places, lengths = history.ngrams.agreements()
    followers = history.ngrams.tokens[places[lengths >= before] + 1]
    return [Ban(ascending(followers))] if followers.size else []


def wanted(params: SamplingParams) -> bool:
    return params.no_repeat_ngram_size > 0


NO_REPEAT_NGRAM = EditMethod(wanted, edits, moves=wanted, recalls=wanted)
