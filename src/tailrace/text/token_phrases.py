"""Texts of a request's fields → token ids: the breakers of DRY, and words with all their spellings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tailrace.errors import ParameterError
from tailrace.params import check_entries
from tailrace.request.field_checks import MAX_PHRASE
from tailrace.request.sampler_fields import DRY_BREAKERS

MAX_BAD_WORD_CHARS = 1000
MAX_WORDS_CHARS = 32_768  # of a list of words, which become token ids
MAX_BREAKERS = 64

BiasedPhrases = tuple[tuple[tuple[int, ...], float], ...]


class WordEncoder(Protocol):
    """A tokenizer, as far as it is needed here (text/tokenizer.py)."""

    def bad_word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Return the spellings of a word as ids."""
        ...

    def ids_with(self, strings: tuple[str, ...]) -> tuple[int, ...]:
        """Return the ids of all tokens that contain one of these strings."""
        ...


def encode_biased_phrases(entries: Sequence[tuple[str | list[int], float]], tokenizer: WordEncoder) -> BiasedPhrases:
    """Return each entry's ids, or its text's spellings, with their bias. The field is sequence_bias."""
    found: list[tuple[tuple[int, ...], float]] = []
    check_entries("sequence_bias", len(entries))
    check_words((what for what, _ in entries if isinstance(what, str)), "sequence_bias")
    for what, bias in entries:
        words = encode_spellings(what, tokenizer, "sequence_bias") if isinstance(what, str) else (tuple(what),)
        found += [(word, bias) for word in words]
    return tuple(found)


def encode_words(words: Sequence[str | Sequence[int]], tokenizer: WordEncoder) -> tuple[tuple[int, ...], ...]:
    """Return each word's spellings as token ids, without repetitions. Words that are ids are returned unchanged. The
    field is bad_words.

    Raises:
        ParameterError: a word is empty or too long to be one.
    """
    check_entries("bad_words", len(words))
    check_words((word for word in words if isinstance(word, str)), "bad_words")
    found = [
        encode_spellings(word, tokenizer, "bad_words") if isinstance(word, str) else (tuple(word),) for word in words
    ]
    return tuple(dict.fromkeys(spelling for spellings in found for spelling in spellings))


def encode_spellings(word: str, tokenizer: WordEncoder, field: str) -> tuple[tuple[int, ...], ...]:
    """Return a word's spellings as token ids.

    Raises:
        ParameterError: it is empty or too long to be one.
    """
    if not 0 < len(word) <= MAX_BAD_WORD_CHARS:
        raise ParameterError(f"{field} must hold strings of 1 to {MAX_BAD_WORD_CHARS} characters", field)
    found = tokenizer.bad_word_ids(word)
    if any(len(ids) > MAX_PHRASE for ids in found):
        raise ParameterError(f"{field} must hold words of at most {MAX_PHRASE} tokens", field)
    return found


def check_words(words: Iterable[str], field: str) -> None:
    """Raise ParameterError for more text than a list of words may hold in all."""
    if (total := sum(map(len, words))) > MAX_WORDS_CHARS:
        raise ParameterError(f"{field} must hold at most {MAX_WORDS_CHARS} characters in all, got {total}", field)


def find_breaker_ids(
    strings: Sequence[str] | None, tokenizer: WordEncoder, multiplier: float | None
) -> tuple[int, ...]:
    """Return the ids of all tokens that hold one of the sequence breakers; () where the multiplier turns DRY off.

    strings: the request's; None: the default ones.
    """
    if strings is None:
        return tokenizer.ids_with(DRY_BREAKERS) if multiplier else ()
    if len(strings) > MAX_BREAKERS or any(not 0 < len(s) <= MAX_BAD_WORD_CHARS for s in strings):
        raise ParameterError(
            f"dry_sequence_breakers must hold at most {MAX_BREAKERS} strings of 1 to {MAX_BAD_WORD_CHARS} characters",
            "dry_sequence_breakers",
        )
    return () if multiplier == 0.0 else tokenizer.ids_with(tuple(strings))
