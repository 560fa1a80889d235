"""Fields of words and texts → token ids: logit_bias, prediction; text/token_phrases.py has the others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.api.schema.common import PredictedOutput
from tailrace.errors import ParameterError, format_json
from tailrace.params import check_entries
from tailrace.request.fields import MAX_TOKEN_ID, format_exact_number
from tailrace.text.token_phrases import BiasedPhrases, check_words, encode_spellings

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

MAX_API_BIAS = 100.0
MAX_PREDICTED_CHARS = 1 << 19
NUMBER = re.compile(r"[-+]?[0-9][0-9.]*")  # a key of logit_bias that must be a token id; any other is text


def logit_bias(by_name: dict[str, float], tokenizer: Tokenizer) -> tuple[dict[int, float], BiasedPhrases]:
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
