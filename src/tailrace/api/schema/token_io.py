"""Token in, token out, in vLLM's shapes: rendered requests, generated tokens, and answers made of tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tailrace.api.schema.chat import CHAT_REFUSED, ChatRequest
from tailrace.api.schema.common import CacheSalt, Priority, RequestId, StreamOptions, TokenId, Usage
from tailrace.api.schema.completions import COMPLETION_REFUSED, CompletionRequest

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
OFFSETS = "return_token_offsets"


class RenderChatRequest(ChatRequest, kw_only=True):
    """A chat that is rendered. `return_token_offsets`: where in the prompt's text each token begins and ends."""

    return_token_offsets: bool | None = None


class RenderCompletionRequest(CompletionRequest, kw_only=True):
    """A completion that is rendered."""

    return_token_offsets: bool | None = None


RENDER_CHAT_REFUSED = {name: values for name, values in CHAT_REFUSED.items() if name != OFFSETS}
RENDER_COMPLETION_REFUSED = {name: values for name, values in COMPLETION_REFUSED.items() if name != OFFSETS}


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """What /inference/v1/generate takes. `token_offsets`: of the characters of the prompt's text."""

    request_id: str
    token_ids: list[int]
    token_offsets: list[tuple[int, int]] | None = None
    sampling_params: dict[str, Any]
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = 0
    return_token_ids: bool | None = None


class TokensRequest(msgspec.Struct, kw_only=True):
    """`sampling_params`: by vLLM's names; other fields of /v1/completions are in its `extra_args`."""

    token_ids: list[TokenId]
    sampling_params: dict[str, Any]
    request_id: RequestId | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens"] = "tokens"


# what only other modes and other servers read: field → the values at which it asks for nothing
TOKENS_REFUSED: dict[str, tuple[Any, ...]] = {
    "features": (None,),
    "content_parts": (None, []),
    "kv_transfer_params": (None, {}),
    "ec_transfer_params": (None, {}),
}
TOKENS_IGNORED = frozenset({"token_offsets", "parse_context", "reasoning_ended", "reasoning_parser_kwargs"})


class LikelyToken(msgspec.Struct, frozen=True):
    """A token that could have come."""

    token_id: int
    logprob: float
    rank: int | None = None


class ScoredToken(msgspec.Struct, frozen=True):
    """A token of the output. `top_logprobs`: the token itself, then the other likeliest ones."""

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[LikelyToken] = []


class ScoredTokens(msgspec.Struct, frozen=True):
    """One entry per token of the output."""

    content: list[ScoredToken] | None = None


class TokensChoice(msgspec.Struct, kw_only=True):
    """An output, or what is new of it; `finish_reason` is null until its end."""

    index: Count
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[TokenId] | None = None
    logprobs: ScoredTokens | None = None


class TokensAnswer(msgspec.Struct, kw_only=True):
    """The outputs of one prompt, or an event of their stream."""

    request_id: str
    choices: list[TokensChoice]
    model: str | None = None
    created: int | None = None
    usage: Usage | None = None
    prompt_token_ids: list[TokenId] | None = None
    output_mode: Literal["tokens"] = "tokens"


class GivenTokens(msgspec.Struct, kw_only=True):
    """A TokensAnswer as a client sends it back."""

    request_id: str
    choices: list[TokensChoice]
    prompt_token_ids: list[TokenId] | None = None
    output_mode: Literal["tokens"] = "tokens"


class DerenderChatRequest(msgspec.Struct, kw_only=True):
    """`generate_response`: a TokensAnswer. `chat_request`: what was rendered. `prompt_token_ids`: the prompt, if it is
    not the rendered one."""

    generate_response: GivenTokens
    chat_request: msgspec.Raw
    model: str | None = None
    stream: Literal[False] | None = None
    prompt_tokens: Count | None = None
    prompt_token_ids: list[TokenId] | None = None


class DerenderCompletionRequest(msgspec.Struct, kw_only=True):
    """One TokensAnswer per prompt of `completion_request`."""

    generate_responses: list[GivenTokens]
    completion_request: msgspec.Raw
    model: str | None = None
    stream: Literal[False] | None = None
    prompt_tokens: list[Count] | None = None
    prompt_token_ids: list[list[TokenId] | None] | None = None
