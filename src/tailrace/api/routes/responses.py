"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from starlette.responses import Response

from tailrace.api.aggregate import last_seen
from tailrace.api.body import BodyReader
from tailrace.api.channels import Channels
from tailrace.api.chat_prompt import encode_chat
from tailrace.api.chunks import dump_params
from tailrace.api.conversations import extend_conversation, fetch_items, name_conversation
from tailrace.api.generation import Generation
from tailrace.api.item_references import resolve_references
from tailrace.api.prepare import (
    ChatInput,
    PreparedRequest,
    TokenLimit,
    check_gathered,
    prepare_chat,
    start_generation,
)
from tailrace.api.received import Received, answers
from tailrace.api.response_input import ResponseChat, read_chat
from tailrace.api.response_logprobs import ScoredSegments
from tailrace.api.response_run import ResponseRun
from tailrace.api.response_saver import ResponseSaver
from tailrace.api.routes.stored_responses import FRAMES, SecondReader, last_frame, replay_events
from tailrace.api.routes.tokenize import check_body_size
from tailrace.api.sampling import num_logprobs
from tailrace.api.schema.responses import (
    ENCRYPTED,
    LOGPROBS,
    RESPONSES_REFUSED,
    ConversationName,
    Event,
    ResponseObject,
    ResponsesRequest,
    ResponseTokens,
    TextOptions,
)
from tailrace.api.sealed_items import open_sealed_items
from tailrace.api.service import Service
from tailrace.api.streaming import NAMED, json_response, make_response
from tailrace.api.truncation import prepare_truncated
from tailrace.api.user_admission import ADMISSION
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_stored
from tailrace.errors import ParameterError
from tailrace.text.splitter import ReasoningTokens

READER = BodyReader(ResponsesRequest, RESPONSES_REFUSED)
NO_REASONING: dict[str, Any] = {"effort": None, "summary": None}
FUNCTION: dict[str, Any] = {"description": None, "parameters": None, "strict": False}


@answers(READER)
async def create_response(received: Received[ResponsesRequest]) -> Response:
    """A response, streamed or whole, or begun in the background."""
    check_background(received)
    run = await start_response(received)
    if received.ask.background:
        return await run_in_background(received, run)
    return await make_response(
        received.request, run.generation, run.events(), last_response, received.ask.streamed, NAMED
    )


def check_background(received: Received[ResponsesRequest]) -> None:
    """Raise ParameterError if the request asks for the background, and would not be stored."""
    if received.ask.background and received.ask.store is False:
        raise ParameterError("background needs store to be true: the response is read from the store", "background")


async def run_in_background(received: Received[ResponsesRequest], run: ResponseRun) -> Response:
    """The response as it waits, or the stream that shows it. It goes on without its client.

    Raises:
        RateLimitError: the user runs too many already.
    """
    request, id, user = received.request, run.generation.id, received.user
    await received.front.background.start(user, id, run.events(), request.scope.get(ADMISSION))
    if received.ask.streamed:
        return await make_response(request, SecondReader(), replay_events(request, id, 0), last_frame, True, FRAMES)
    return Response(await ask_stored(request, "response", id), media_type="application/json")


async def start_response(received: Received[ResponsesRequest]) -> ResponseRun:
    """The response that the request asks for, before anything is generated.

    Raises:
        RequestError: naming the field.
    """
    ask, service, front = received.ask, received.service, received.front
    prepared, channels, chat = await prepare_response(received)
    check_gathered(prepared)  # the last events have the whole response
    # the id is ours, since responses are stored by it; what a client calls its request may be used by others as well
    origin = received.origin("chat", ask)
    generation = start_generation(service, f"resp_{uuid4().hex}", prepared, origin)
    response = response_of(service, ask, generation)
    saver = ResponseSaver(front.responses.share_of(received.user), front.file, response, chat.items, ask.streamed)
    splitter = channels.make_splitter()
    generation.thoughts = [ReasoningTokens(splitter)] if channels.counts else None
    explains = generation.params.explain is not None
    segments = ScoredSegments(splitter, service.labels_for(ask), prepared.params.logprobs, explains)
    seal = partial(front.sealer.seal, "reasoning", received.user) if ENCRYPTED in (ask.include or ()) else None
    return ResponseRun(generation, saver, segments, chat.tools.offered, seal, extend_conversation(received, response))


async def prepare_response(
    received: Received[ResponsesRequest],
) -> tuple[PreparedRequest, Channels, ResponseChat]:
    """The request as the engine takes it, the channels of the answer, and the chat that it is.

    Raises:
        RequestError: naming the field.
    """
    ask, before = received.ask, await fetch_conversation(received)
    await resolve_references(received)
    await open_sealed_items(received)

    chat = await received.run(lambda: read_chat(ask, before), received.size // JSON_BYTES)
    received.move_tools(chat.tools.places)
    limit = TokenLimit(ask.max_output_tokens, "max_output_tokens")
    given = ChatInput(chat.ask, chat.choice, chat.tools.functions, limit, "input", "text.format")
    top = logprobs_asked(ask, received.service.config.max_logprobs)
    prepare = prepare_truncated if ask.truncation == "auto" else prepare_chat
    return *await prepare(received, given, top), chat


def response_of(service: Service, ask: ResponsesRequest, generation: Generation) -> ResponseObject:
    """The response before anything is generated."""
    params = generation.params
    return ResponseObject(
        id=generation.id,
        created_at=int(time.time()),
        background=ask.background is True,
        instructions=ask.instructions,
        max_output_tokens=ask.max_output_tokens,
        max_tool_calls=ask.max_tool_calls,
        model=service.model_name,
        output=[],
        previous_response_id=ask.previous_response_id,
        conversation=None if ask.conversation is None else ConversationName(name_conversation(ask.conversation)),
        store=ask.store is not False,
        temperature=params.temperature,
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        top_logprobs=ask.top_logprobs or 0,
        tools=[complete_tool(tool) for tool in ask.tools or ()],
        tool_choice=ask.tool_choice or "auto",
        truncation=ask.truncation or "disabled",
        text=ask.text or TextOptions(),
        parallel_tool_calls=ask.parallel_tool_calls is not False,
        metadata=ask.metadata or {},
        reasoning=None if ask.reasoning is None else NO_REASONING | msgspec.to_builtins(ask.reasoning),
        sampling_params=dump_params(ask, generation),
    )


def complete_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as an answer shows it: a function has all of its fields."""
    return FUNCTION | tool if tool.get("type") == "function" else tool


async def last_response(stream: AsyncGenerator[Event, None]) -> ResponseObject:
    """The response that the stream ends with."""
    return await last_seen(stream, lambda event: event.response)


@answers(READER)
async def count_input_tokens(received: Received[ResponsesRequest]) -> Response:
    """The tokens of the prompt that the same response would have."""
    check_body_size(received, "input")
    ask, before = received.ask, await fetch_conversation(received)
    await resolve_references(received)
    await open_sealed_items(received)
    chat = await received.run(lambda: read_chat(ask, before), received.size // JSON_BYTES)
    ids = await encode_chat(received, chat.ask, chat.choice.mode != "none", "input", bound=False)
    return json_response(ResponseTokens(len(ids)))


async def fetch_conversation(received: Received[ResponsesRequest]) -> bytes:
    """Return the items of the conversation that this request continues, as JSON; b"[]" if it continues none.

    Raises:
        ParameterError: together they are larger than a body may be. RequestNotFoundError: the previous response, or the
            conversation, is not stored.
    """
    ask = received.ask
    if ask.conversation is not None:
        return await fetch_items(received)
    name, previous = "previous_response_id", ask.previous_response_id
    if previous is None:
        return b"[]"
    before = await ask_stored(received.request, "conversation", previous, name)
    received.add_bytes(before, name)
    return before


def logprobs_asked(ask: ResponsesRequest, limit: int) -> int | None:
    """How many alternatives to report per token; None: no logprobs.

    Raises:
        ParameterError: top_logprobs out of range, or without the logprobs that they belong to.
    """
    wanted = LOGPROBS in (ask.include or ())
    if ask.top_logprobs:
        num_logprobs(ask.top_logprobs, limit, "top_logprobs")
        if not wanted:
            raise ParameterError(f'top_logprobs needs include: ["{LOGPROBS}"]', "top_logprobs")
    return (ask.top_logprobs or 0) if wanted else None
