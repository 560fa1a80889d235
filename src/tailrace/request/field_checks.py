"""Checks of fields' values besides type and range: (the field's name, its value) → None, or ParameterError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tailrace.errors import ParameterError, format_json
from tailrace.request.fields import COUNT, Range, format_exact_number

MAX_CHARS = 1024  # Characters of one stop string or banned string.
MAX_BYTES = 8192  # UTF-8 bytes of a request's strings. Compiled, they take about 300 times as much.
MAX_PHRASE = (
    64  # token ids of one bad word or biased sequence, which are compared with the end of the text at every token
)
MAX_ROW = 128  # token ids per place whose logprobs are requested
MAX_BIAS = 1e4  # |logit bias|; OpenAI's own range is −100 … 100, which the HTTP schema enforces
DECAY = Range(1e-3, 1e3)  # the factor of exponential_decay_length_penalty

Phrase = tuple[int, ...]


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raise ParameterError unless these strings can be searched in the text."""
    if any(not text for text in texts):
        raise ParameterError(f"{name} must hold non-empty strings", name)
    if any(len(text) > MAX_CHARS for text in texts):
        raise ParameterError(f"{name} must hold strings of at most {MAX_CHARS} characters", name)
    if any("\ud800" <= char <= "\udfff" for text in texts for char in text):
        raise ParameterError(f"{name} must hold text that UTF-8 can write: no surrogates", name)
    if sum(len(text.encode()) for text in texts) > MAX_BYTES:
        raise ParameterError(f"{name} must hold at most {MAX_BYTES} bytes in all", name)


def check_some(name: str, ids: Sequence[int]) -> None:
    """Raise ParameterError if a list of allowed tokens is empty."""
    if not ids:
        raise ParameterError(f"{name} must not be empty; leave it out to allow every token", name)


def check_phrases(name: str, phrases: Iterable[Phrase]) -> None:
    """Raise ParameterError for an empty or too long sequence of token ids."""
    for phrase in phrases:
        if not phrase:
            raise ParameterError(f"{name} must hold non-empty sequences of token ids", name)
        if len(phrase) > MAX_PHRASE:
            raise ParameterError(f"{name} must hold sequences of at most {MAX_PHRASE} token ids", name)


def check_rows(name: str, rows: Sequence[Sequence[int]]) -> None:
    """Raise ParameterError unless some place has token ids, and no place has too many."""
    if not any(rows):
        raise ParameterError(f"{name} must hold token ids", name)
    if max(map(len, rows)) > MAX_ROW:
        raise ParameterError(f"{name} must hold at most {MAX_ROW} token ids for a place", name)


def check_integers(name: str, value: object) -> None:
    """Raise ParameterError for an integer of more than 64 bits, at any depth: it can't be sent to another process."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case int(number) if not -(2**63) <= number < 2**63:
                raise ParameterError(f"{name} must hold integers of 64 bits, got {number}"[:200], name)
            case Mapping() as inner:
                waiting.extend((*inner, *inner.values()))
            case list() | tuple() as inner:
                waiting.extend(inner)


def check_biases(name: str, biases: Mapping[int, float]) -> None:
    """Raise ParameterError for a bias out of range. biases: token id → value added to its logit."""
    check_finite(name, biases.items())


def check_biased_phrases(name: str, biases: Sequence[tuple[Phrase, float]]) -> None:
    """Raise ParameterError for an invalid sequence of token ids or the bias of its last one."""
    check_phrases(name, (phrase for phrase, _ in biases))
    check_finite(name, biases)


def check_finite(name: str, biases: Iterable[tuple[object, float]]) -> None:
    """Raise ParameterError for a bias beyond MAX_BIAS."""
    for token, bias in biases:
        if not math.isfinite(bias) or abs(bias) > MAX_BIAS:
            raise ParameterError(
                f"{name} must lie between {format_exact_number(-MAX_BIAS)} and {format_exact_number(MAX_BIAS)}, "
                f"got {bias} for token {token}",
                name,
            )


def check_decay(name: str, decay: tuple[int, float]) -> None:
    """Raise ParameterError unless this is [start, factor] of an exponential decay, both in range."""
    start, factor = decay
    if start not in COUNT or factor not in DECAY:
        raise ParameterError(
            f"{name} must be [start, factor], an integer in {COUNT} and a number in {DECAY}, got {format_json(decay)}",
            name,
        )
