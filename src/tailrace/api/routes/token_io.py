"""Token in, token out: POST /inference/v1/generate, /v1/chat/completions/derender and /v1/completions/derender
(decision 0107). See render.py for the way from a request to its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.responses import Response

from tailrace.api.aggregate import fold_chat, fold_completion
from tailrace.api.body import BodyReader
from tailrace.api.channels import channels_of
from tailrace.api.prepare import PreparedRequest, Prompts, TokenLimit, prepare_request, start_generation
from tailrace.api.received import Received, answers
from tailrace.api.routes.chat import READER as CHAT_READER
from tailrace.api.routes.chat import ChatChunks, prepare_completion
from tailrace.api.routes.completions import READER as COMPLETION_READER
from tailrace.api.routes.completions import CompletionChunks, make_completion_additions, prepare_texts, prompts_of
from tailrace.api.sampling import num_logprobs
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.token_io import (
    TOKENS_IGNORED,
    TOKENS_REFUSED,
    DerenderChatRequest,
    DerenderCompletionRequest,
    GivenTokens,
    TokensRequest,
)
from tailrace.api.streaming import json_response, make_response
from tailrace.api.token_answer import TokenAnswer, TokenOutput
from tailrace.api.token_params import nest_params, read_params
from tailrace.api.token_stream import fold_tokens, stream_tokens
from tailrace.errors import ParameterError, RequestError, nest_error

TOKENS = BodyReader(TokensRequest, TOKENS_REFUSED, TOKENS_IGNORED)
DERENDER_CHAT = BodyReader(DerenderChatRequest, {})
DERENDER_COMPLETION = BodyReader(DerenderCompletionRequest, {})


# ---- generate


async def prepare_tokens(received: Received[Any], ask: CompletionRequest, prompts: list[list[int]]) -> PreparedRequest:
    """A request for tokens as the engine takes it.

    Raises:
        RequestError: naming the parameter.
    """
    top = None if ask.logprobs is None else num_logprobs(ask.logprobs, received.service.config.max_logprobs, "logprobs")
    limit = TokenLimit(ask.max_tokens, "max_tokens")
    additions = lambda: make_completion_additions(ask)  # noqa: E731
    return await prepare_request(received, ask, Prompts(prompts, "token_ids"), limit, top, additions)


@answers(TOKENS)
async def generate_tokens(received: Received[TokensRequest]) -> Response:
    """The outputs of a prompt as token ids, streamed or whole."""
    ask, service = received.ask, received.service
    check_prompt(received, ask.token_ids, "token_ids")
    request = msgspec.structs.replace(
        read_params(ask.sampling_params),
        **{name: getattr(ask, name) for name in ("request_id", "stream", "stream_options", "cache_salt", "priority")},
    )
    try:
        prepared = await prepare_tokens(received, request, [ask.token_ids])
        prepared.params.check_vocab(service.client.model.vocab_size)
    except RequestError as error:
        raise error if error.field in ("token_ids", None) else nest_params(error) from error
    origin = received.origin("generate", request)
    generation = start_generation(service, origin.request_id, prepared, origin)
    chunks = stream_tokens(generation, request, service.model_name, bool(ask.return_token_ids))
    return await make_response(received.request, generation, chunks, fold_tokens, request.streamed)


# ---- derender


@contextmanager
def nested_errors(field: str) -> Iterator[None]:
    """Errors about a request inside the body name it."""
    try:
        yield
    except RequestError as error:
        raise nest_error(field, error) from error


@answers(DERENDER_CHAT)
async def derender_chat(received: Received[DerenderChatRequest]) -> Response:
    """The answer to a chat, made of the tokens of its outputs."""
    asked, given = received.ask, received.ask.generate_response
    inner: Received[ChatRequest] = await read_inner(received, CHAT_READER, asked.chat_request, "chat_request")
    with nested_errors("chat_request"):
        prepared, channels, choice = await prepare_completion(inner)
    prompt = prepared.prompts[0] if asked.prompt_token_ids is None else asked.prompt_token_ids
    check_prompt(inner, prompt, "prompt_token_ids")
    if asked.prompt_token_ids is not None:
        channels = channels_of(inner.service, inner.ask, prompt)
    outputs = list_outputs(inner, [given], "generate_response")
    count = len(prompt) if asked.prompt_tokens is None else asked.prompt_tokens
    answer = TokenAnswer(inner.service, given.request_id, [prompt], prepared.params, outputs, count)
    return json_response(await fold_chat(ChatChunks(inner.service, inner.ask, answer, channels, choice).stream()))


@answers(DERENDER_COMPLETION)
async def derender_completion(received: Received[DerenderCompletionRequest]) -> Response:
    """The answer to a completion, made of the tokens of its outputs."""
    asked, given = received.ask, received.ask.generate_responses
    field = "completion_request"
    inner: Received[CompletionRequest] = await read_inner(received, COMPLETION_READER, asked.completion_request, field)
    with nested_errors(field):
        prepared = await prepare_texts(inner, inner.ask, prompts_of(inner.ask.prompt))
    for name in ("generate_responses", "prompt_tokens", "prompt_token_ids"):
        values: list[Any] | None = getattr(asked, name)
        if values is not None and len(values) != len(prepared.prompts):
            raise ParameterError(f"{name} must have one entry per prompt, {len(prepared.prompts)}", name)
    prompts = [
        rendered if ids is None else ids
        for rendered, ids in zip(
            prepared.prompts, asked.prompt_token_ids or [None] * len(prepared.prompts), strict=False
        )
    ]
    for p, ids in enumerate(prompts):
        check_prompt(inner, ids, f"prompt_token_ids[{p}]" if asked.prompt_token_ids else f"{field}.prompt")
    outputs = list_outputs(inner, given, "generate_responses")
    count = sum(map(len, prompts)) if asked.prompt_tokens is None else sum(asked.prompt_tokens)
    answer = TokenAnswer(inner.service, given[0].request_id, prompts, prepared.params, outputs, count)
    return json_response(await fold_completion(CompletionChunks(inner.service, inner.ask, answer, None).stream()))


async def read_inner(received: Received[Any], reader: BodyReader[Any], raw: msgspec.Raw, field: str) -> Received[Any]:
    """The request inside a body.

    Raises:
        ParameterError: naming its field, or one that has no meaning here.
    """
    with nested_errors(field):
        body = await reader.decode(received.request, bytes(raw))
        unknown = {f"{field}.{name}": hint for name, hint in body.names.unknown.items()}
        body = body._replace(names=body.names._replace(unknown=unknown))
        service = received.front.find(body.ask.model or received.ask.model)
        service = service if received.ask.model is None else received.service
        inner: Received[Any] = Received(received.request, body, service)
        inner.warnings = received.warnings = received.warnings | inner.warnings
        inner.service.supervisor.check()
        for name in ("echo", "best_of", "use_beam_search", "explain", "timings_per_token", "return_sampling_mask"):
            if getattr(body.ask, name, None):
                raise ParameterError(f"{name} can't be had of tokens", name)
        inner.ask = msgspec.structs.replace(body.ask, stream=None, stream_options=None, prompt_logprobs=None)
    return inner


def list_outputs(received: Received[Any], given: list[GivenTokens], field: str) -> list[TokenOutput]:
    """The outputs of all prompts in order.

    Raises:
        ParameterError: an output is too long, has an unknown token, or has the index of another one.
    """
    found: list[TokenOutput] = []
    for p, response in enumerate(given):
        place = field if field == "generate_response" else f"{field}[{p}]"
        indices: set[int] = set()
        for i, choice in sorted(enumerate(response.choices), key=lambda numbered: numbered[1].index):
            name = f"{place}.choices[{i}]"
            if choice.index in indices:
                raise ParameterError(f"{name}.index: {choice.index} is the index of another choice", f"{name}.index")
            indices.add(choice.index)
            check_ids(received, choice.token_ids or [], f"{name}.token_ids")
            found.append(TokenOutput(p, choice, name))
    if not found:
        raise ParameterError(f"{field}: there is no choice", field)
    return found


def check_prompt(received: Received[Any], ids: list[int], field: str) -> None:
    """Raise ParameterError for token ids that no prompt can have."""
    if not ids:
        raise ParameterError(f"{field} must not be empty", field)
    check_ids(received, ids, field)


def check_ids(received: Received[Any], ids: list[int], field: str) -> None:
    """Raise ParameterError for token ids that neither a prompt nor an output can have."""
    info = received.service.client.model
    if len(ids) > info.max_model_len:
        raise ParameterError(f"{field} must have at most {info.max_model_len} ids, got {len(ids)}", field)
    if ids and (largest := max(ids)) >= info.vocab_size:
        raise ParameterError(f"{field} must be in 0 … {info.vocab_size - 1}, got {largest}", field)
