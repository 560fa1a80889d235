"""Fields of words and texts → token ids: logit_bias, sequence_bias, bad_words, dry_sequence_breakers, prediction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tailrace.api.schema.common import GenerateRequest, PredictedOutput
from tailrace.errors import ParameterError, format_json
from tailrace.params import check_entries
from tailrace.request.field_checks import MAX_PHRASE
from tailrace.request.fields import MAX_TOKEN_ID, format_exact_number
from tailrace.request.sampler_fields import DRY_BREAKERS

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

MAX_API_BIAS = 100.0
MAX_BAD_WORD_CHARS = 1000
MAX_WORDS_CHARS = 32_768  # of a list of words, which become token ids
MAX_BREAKERS = 64
MAX_PREDICTED_CHARS = 1 << 19
NUMBER = re.compile(r"[-+]?[0-9][0-9.]*")  # a key of logit_bias that must be a token id; any other is text

Sequences = tuple[tuple[tuple[int, ...], float], ...]


def logit_bias(by_name: dict[str, float], tokenizer: Tokenizer) -> tuple[dict[int, float], Sequences]:
    """JSON's string keys → biases of ids, and of the spellings of strings. Digits are a token id; anything else is
    text, whose every spelling (with and without a space before it) gets the bias on its last token.

    Raises:
        ParameterError: a key is neither, or a bias lies outside OpenAI's range.
    """
    biases: dict[int, float] = {}
    sequences: list[tuple[tuple[int, ...], float]] = []
    check_entries("logit_bias", len(by_name))
    texts = [key for key in by_name if not NUMBER.fullmatch(key)]
    check_entries("sequence_bias", len(texts), of="logit_bias")
    check_words(texts, "logit_bias")
    for key, bias in by_name.items():
        if not -MAX_API_BIAS <= bias <= MAX_API_BIAS:
            raise ParameterError(
                f"logit_bias must lie between {format_exact_number(-MAX_API_BIAS)} and "
                f"{format_exact_number(MAX_API_BIAS)}, got {bias} for token {key[:100]}",
                "logit_bias",
            )
        if not NUMBER.fullmatch(key):
            sequences += [(spelling, bias) for spelling in encode_spellings(key, tokenizer, "logit_bias")]
            continue
        if not key.isdigit() or len(key) > 10 or int(key) > MAX_TOKEN_ID:
            raise ParameterError(f"logit_bias: {format_json(key)} is not a token id", "logit_bias")
        if int(key) in biases:
            raise ParameterError(f"logit_bias: token {int(key)} is there twice", "logit_bias")
        biases[int(key)] = bias
    check_entries("sequence_bias", len(sequences), of="logit_bias")
    return biases, tuple(sequences)


def sequence_bias(entries: Sequence[tuple[str | list[int], float]], tokenizer: Tokenizer) -> Sequences:
    """Each entry's ids, or its text's spellings, with their bias."""
    found: list[tuple[tuple[int, ...], float]] = []
    check_entries("sequence_bias", len(entries))
    check_words((what for what, _ in entries if isinstance(what, str)), "sequence_bias")
    for what, bias in entries:
        words = (tuple(what),) if isinstance(what, list) else encode_spellings(what, tokenizer, "sequence_bias")
        found += [(word, bias) for word in words]
    return tuple(found)


def encode_spellings(word: str, tokenizer: Tokenizer, field: str) -> tuple[tuple[int, ...], ...]:
    """A word's spellings as token ids.

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


def bad_words(words: list[str] | tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word's spellings as token ids.

    Raises:
        ParameterError: a word is empty or too long to be one.
    """
    check_entries("bad_words", len(words))
    check_words(words, "bad_words")
    found = (spelling for word in words for spelling in encode_spellings(word, tokenizer, "bad_words"))
    return tuple(dict.fromkeys(found))


def find_breaker_ids(request: GenerateRequest, tokenizer: Tokenizer, multiplier: float | None) -> tuple[int, ...]:
    """The ids of all tokens that hold one of the sequence breakers; () where the multiplier turns DRY off."""
    if request.dry_sequence_breakers is None:
        return tokenizer.ids_with(DRY_BREAKERS) if multiplier else ()
    strings = request.dry_sequence_breakers
    if len(strings) > MAX_BREAKERS or any(not 0 < len(s) <= MAX_BAD_WORD_CHARS for s in strings):
        raise ParameterError(
            f"dry_sequence_breakers must hold at most {MAX_BREAKERS} strings of 1 to {MAX_BAD_WORD_CHARS} characters",
            "dry_sequence_breakers",
        )
    return () if multiplier == 0.0 else tokenizer.ids_with(tuple(strings))


def encode_prediction(prediction: PredictedOutput | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the predicted text as token ids; () for none.

    Raises:
        ParameterError: the text is too long.
    """
    text = "" if prediction is None else prediction.text
    if len(text) > MAX_PREDICTED_CHARS:
        raise ParameterError(
            f"prediction.content must have at most {MAX_PREDICTED_CHARS} characters, got {len(text)}", "prediction"
        )
    ids = tokenizer.encode(text, add_special_tokens=False) if text else []
    check_entries("prediction", len(ids), of="prediction.content")
    return tuple(ids)
