"""Bad words: the last id of a phrase becomes −inf where the ids before it end the sequence so far; a phrase of one id is
always banned. Phrases come as token ids: all spellings of a word are the business of whoever has the tokenizer. Neutral: ()."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tailrace.sampling.methods.base import Edit

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def apply(row: torch.Tensor, slot: Slot) -> None:
    tail = slot.history.tail if slot.history is not None else []
    for word in slot.params.bad_words:
        before = len(word) - 1
        if before == 0 or tail[-before:] == list(word[:-1]):
            row[word[-1]] = float("-inf")


BAD_WORDS = Edit(lambda params: bool(params.bad_words), apply)
