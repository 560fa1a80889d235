"""Fields of a request that may hold text → token ids, by the engine's own tokenizer: the fields of CONVERTED."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tailrace.errors import ParameterError, format_json
from tailrace.integrations.field_values import read_number
from tailrace.text.token_phrases import WordEncoder, encode_biased_phrases, encode_words, find_breaker_ids

CONVERTED = ("dry_sequence_breakers", "sequence_bias", "bad_words")


class NoTokenizer:
    """The tokenizer of a check before any tokenizer is known: each word is one token, and no token has a breaker."""

    def bad_word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Return one spelling."""
        return ((0,),)

    def ids_with(self, strings: tuple[str, ...]) -> tuple[int, ...]:
        """Return no token."""
        return ()


def convert_texts(own: Mapping[str, Any], tokenizer: WordEncoder) -> dict[str, Any]:
    """Return the fields of CONVERTED as token ids, in a form that JSON can hold. DRY gets its default breakers, as from
    our own server.

    Raises:
        ParameterError: a field holds something else, or too much.
    """
    found: dict[str, Any] = {}
    breakers = own.get("dry_sequence_breakers")
    if breakers is None or holds_only(check_breakers(breakers), str):
        found["dry_sequence_breakers"] = list(find_breaker_ids(breakers, tokenizer, own.get("dry_multiplier")))
    if (biases := own.get("sequence_bias")) is not None:
        phrases = encode_biased_phrases(check_biases(biases), tokenizer)
        found["sequence_bias"] = [[list(ids), bias] for ids, bias in phrases]
    if (words := own.get("bad_words")) is not None:
        found["bad_words"] = [list(ids) for ids in encode_words(check_bad_words(words), tokenizer)]
    return {name: value for name, value in found.items() if value or name in own}


def find_text(own: Mapping[str, Any]) -> str:
    """Return a field whose value waits for a tokenizer; "" if none does.

    Raises:
        ParameterError: a field holds neither text nor token ids.
    """
    breakers = own.get("dry_sequence_breakers")
    default = breakers is None and own.get("dry_multiplier")
    if default or any(isinstance(one, str) for one in check_breakers(breakers or ())):
        return "dry_sequence_breakers"
    biases = check_biases(own.get("sequence_bias") or ())
    if any(isinstance(what, str) for what, _ in biases):
        return "sequence_bias"
    return "bad_words" if any(isinstance(word, str) for word in check_bad_words(own.get("bad_words") or ())) else ""


def holds_only(value: Any, kind: type) -> bool:
    """Return whether this is a list of such entries. A truth value is no number here."""
    return isinstance(value, list | tuple) and all(isinstance(one, kind) and not isinstance(one, bool) for one in value)


def is_phrase(value: Any) -> bool:
    """Return whether this is text or a list of token ids."""
    return isinstance(value, str) or holds_only(value, int)


def check_breakers(breakers: Any) -> Sequence[Any]:
    """Return the breakers. Raise ParameterError unless all are texts or all are token ids."""
    if holds_only(breakers, str) or holds_only(breakers, int):
        return breakers
    refuse_value("dry_sequence_breakers", "a list of strings, or a list of token ids", breakers)


def check_biases(biases: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of text or token ids and bias. Raise ParameterError for anything else."""
    if isinstance(biases, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 2 for one in biases):
        pairs = [(what, read_number(bias, whole=False)) for what, bias in biases]
        if all(is_phrase(what) and isinstance(bias, int | float) for what, bias in pairs):
            return pairs
    refuse_value("sequence_bias", "a list of [text or token ids, bias], or one as JSON text", biases)


def check_bad_words(words: Any) -> list[Any]:
    """Return the words. Raise ParameterError unless each is text or a list of token ids."""
    if isinstance(words, list | tuple) and all(map(is_phrase, words)):
        return list(words)
    refuse_value("bad_words", "a list of texts or lists of token ids", words)


def refuse_value(name: str, wanted: str, value: Any) -> NoReturn:
    """Raise ParameterError with the wanted and the given value."""
    raise ParameterError(f"{name} must be {wanted}, got {format_json(value)[:200]}", name)
