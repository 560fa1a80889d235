"""An engine's tokenizer of a model, for the texts of tailrace's fields."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from tailrace.errors import TailraceError
from tailrace.text.token_phrases import WordEncoder
from tailrace.text.tokenizer import Tokenizer

KEPT: dict[int, tuple[Any, WordEncoder]] = {}  # by the tokenizer's identity, which stays its own while it is kept
MAX_KEPT = 8


def encoder_of(tokenizer: Any) -> WordEncoder:
    """Return the tokenizer as our server has it, made once: it reads the whole vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    source = tokenizer if backend is None else backend
    if id(source) not in KEPT:
        while len(KEPT) >= MAX_KEPT:
            KEPT.pop(next(iter(KEPT)))
        KEPT[id(source)] = source, make_encoder(tokenizer, backend)
    return KEPT[id(source)][1]


def make_encoder(tokenizer: Any, backend: Any) -> WordEncoder:
    """Return our own tokenizer around the same backend, else one that asks the engine's. backend: of the tokenizers
    library; None if the engine's tokenizer has another."""
    try:
        return ByDecoding(tokenizer) if backend is None else Tokenizer(backend, limits=None)
    except TailraceError:  # a decoder that our server can't stream
        return ByDecoding(tokenizer)


class ByDecoding:
    """A tokenizer without a backend of the tokenizers library: each token's text is what decodes from it alone."""

    def __init__(self, tokenizer: Any) -> None:
        self.theirs = tokenizer
        self.texts = [tokenizer.decode([id]) for id in range(tokenizer.vocab_size)]

    def bad_word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Return the spellings of a word as ids: without and with a space before it."""
        encoded = {tuple(self.theirs.encode(form, add_special_tokens=False)) for form in (word, f" {word}")}
        return tuple(sorted(ids for ids in encoded if ids))

    @lru_cache(maxsize=16)  # noqa: B019, it lives as long as its tokenizer
    def ids_with(self, strings: tuple[str, ...]) -> tuple[int, ...]:
        """Return the ids of all tokens whose text contains one of these strings."""
        found = re.compile("|".join(map(re.escape, strings))).search
        return tuple(id for id, text in enumerate(self.texts) if found(text)) if strings else ()
