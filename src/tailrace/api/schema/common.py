"""What Chat Completions and Completions share: sampling fields, usage, reading a body."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from tailrace.api.problems import PathError, from_validation
from tailrace.errors import ParameterError, RequestError
from tailrace.params import LogprobsMode, SamplingParams
from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MAX_BODY = 16 << 20  # bytes
MAX_BIAS = 100.0  # OpenAI's range of logit_bias
MAX_STOPS = 64
LOGPROB_FLOOR = -9999.0  # JSON has no −inf: a token of probability 0 is reported with this

# Fields that SamplingParams has under the same name; None in a request means "not said".
PLAIN_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
    "min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "logprobs_mode",
)  # fmt: skip

T = TypeVar("T", bound="GenerationRequest")
_told: set[str] = set()  # unknown fields that the log has named already


class StreamOptions(msgspec.Struct):
    """OpenAI's stream_options."""

    include_usage: bool = False


class GenerationRequest(msgspec.Struct, kw_only=True):
    """OpenAI's sampling fields, then vLLM's names for what OpenAI does not have."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None
    # beyond OpenAI
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logprobs_mode: LogprobsMode | None = None
    priority: int | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None

    @property
    def include_usage(self) -> bool:
        """A last chunk with usage is wanted."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(
        self, tokenizer: Tokenizer, defaults: dict[str, float | int], max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """The parameters asked for, over the model's defaults.

        Raises:
            ParameterError: naming the field and its range.
        """
        if self.stream_options is not None and not self.stream:
            raise ParameterError("stream_options is only allowed when stream is true", "stream_options")
        fields: dict[str, Any] = dict(defaults)
        for name in PLAIN_FIELDS:
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > MAX_STOPS:
            raise ParameterError(f"stop must have at most {MAX_STOPS} strings, got {len(stop)}", "stop")
        return SamplingParams(
            **fields,
            max_tokens=max_tokens,
            logprobs=logprobs,
            stop=tuple(stop),
            logit_bias=read_bias(self.logit_bias or {}),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=read_bad_words(self.bad_words or [], tokenizer),
        )


def read_bias(bias: dict[str, float]) -> dict[int, float]:
    """OpenAI's logit_bias: ids as strings, −100 … 100."""
    read: dict[int, float] = {}
    for key, value in bias.items():
        if not key.isdecimal():
            raise ParameterError(f"logit_bias: keys must be token ids, got {key!r}", "logit_bias")
        if not abs(value) <= MAX_BIAS:
            raise ParameterError(f"logit_bias must lie between -100 and 100, got {value} for token {key}", "logit_bias")
        read[int(key)] = value
    return read


def read_bad_words(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Words as the ids of their spellings."""
    if any(not word for word in words):
        raise ParameterError("bad_words must hold non-empty strings", "bad_words")
    return tuple(spelling for word in words for spelling in tokenizer.bad_word_ids(word))


class PromptTokensDetails(msgspec.Struct):
    """How many came from the prefix cache."""

    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """Token counts of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


async def read_body(request: Request, schema: type[T]) -> T:
    """The request's JSON as a struct. Unknown fields are tolerated and logged once each.

    Raises:
        RequestError: not JSON, too large, or a field of the wrong type (named).
    """
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise PathError(f"the body has more than {MAX_BODY} bytes", 413)
    try:
        raw = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: {error}") from error
    if not isinstance(raw, dict):
        raise RequestError("the body must be a JSON object")
    for name in raw.keys() - set(schema.__struct_fields__) - _told:
        _told.add(name)
        log.warning("the field %r is not known and has no effect", name)
    try:
        return msgspec.convert(raw, schema)
    except msgspec.ValidationError as error:
        raise from_validation(error) from error


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return logprob if logprob > LOGPROB_FLOOR else LOGPROB_FLOOR
