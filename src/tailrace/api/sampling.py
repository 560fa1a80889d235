"""A request's fields → SamplingParams: names, nulls, defaults, strings that become ids, the room left in the context.

Ranges are params.py's; here are only those that are narrower over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.api.schema.common import MAX_TOKEN_ID, GenerateRequest
from tailrace.errors import ContextLengthError, ParameterError
from tailrace.params import SamplingParams, check_range

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

MAX_API_BIAS = 100.0
MAX_BAD_WORD_CHARS = 1000

# the same name and meaning on both sides; null is the default of SamplingParams
SAME = (
    "n", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p",
    "repetition_penalty", "min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
    "logprobs_mode",
)  # fmt: skip


def sampling_params(
    request: GenerateRequest,
    tokenizer: Tokenizer,
    defaults: Mapping[str, float | int],
    *,
    max_tokens: int,
    logprobs: int | None,
) -> SamplingParams:
    """The parameters as the engine takes them.

    Args:
        defaults: fields that a request may leave out. max_tokens: see `output_limit`. logprobs: how many alternatives to report, or None.

    Raises:
        ParameterError: naming the field.
    """
    given: dict[str, Any] = dict(defaults) | {
        name: value for name in SAME if (value := getattr(request, name)) is not None
    }
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    allowed = request.allowed_token_ids
    return SamplingParams(
        **given,
        max_tokens=max_tokens,
        logprobs=logprobs,
        stop=stop,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        logit_bias=logit_bias(request.logit_bias or {}),
        bad_words=bad_words(request.bad_words or (), tokenizer),
    )


def output_limit(num_prompt: int, max_model_len: int, asked: int | None, field: str, prompt_field: str) -> int:
    """How many tokens may follow the prompt: what was asked for, or the rest of the context.

    Args:
        num_prompt: tokens of the (longest) prompt. field, prompt_field: what the client calls them.

    Raises:
        ContextLengthError: not even one fits. ParameterError: more were asked for than fit.
    """
    rest = max_model_len - num_prompt
    if rest < 1:
        raise ContextLengthError(
            f"{prompt_field}: the model's context is {max_model_len} tokens, but the prompt alone has {num_prompt}",
            prompt_field,
        )
    if asked is None:
        return rest
    try:
        check_range("max_tokens", asked)
    except ParameterError as error:
        raise ParameterError(str(error).replace("max_tokens", field, 1), field) from error
    if asked > rest:
        raise ParameterError(
            f"{field} must be an integer in [1, {rest}], got {asked}: the model's context is {max_model_len} tokens, "
            f"of which the prompt takes {num_prompt}",
            field,
        )
    return asked


def num_logprobs(asked: int, limit: int, field: str) -> int:
    """`asked` itself.

    Raises:
        ParameterError: it is not in 0 … limit.
    """
    if not 0 <= asked <= limit:
        raise ParameterError(f"{field} must be an integer in [0, {limit}], got {asked}", field)
    return asked


def logit_bias(by_name: dict[str, float]) -> dict[int, float]:
    """JSON's string keys → token ids; biases in OpenAI's range.

    Raises:
        ParameterError: a key is no token id, or a bias lies outside.
    """
    biases: dict[int, float] = {}
    for key, bias in by_name.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_TOKEN_ID):
            raise ParameterError(f"logit_bias: {key[:100]!r} is not a token id", "logit_bias")
        if not -MAX_API_BIAS <= bias <= MAX_API_BIAS:
            raise ParameterError(
                f"logit_bias must lie between {-MAX_API_BIAS:g} and {MAX_API_BIAS:g}, got {bias} for token {key}",
                "logit_bias",
            )
        if int(key) in biases:
            raise ParameterError(f"logit_bias: token {int(key)} is there twice", "logit_bias")
        biases[int(key)] = bias
    return biases


def bad_words(words: list[str] | tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word's spellings as token ids.

    Raises:
        ParameterError: a word is empty or too long to be one.
    """
    for word in words:
        if not 0 < len(word) <= MAX_BAD_WORD_CHARS:
            raise ParameterError(f"bad_words must hold strings of 1 to {MAX_BAD_WORD_CHARS} characters", "bad_words")
    return tuple(dict.fromkeys(spelling for word in words for spelling in tokenizer.bad_word_ids(word)))
