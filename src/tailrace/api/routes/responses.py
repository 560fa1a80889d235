"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from tailrace.api.aggregate import last_seen
from tailrace.api.body import BodyReader
from tailrace.api.channels import Channels
from tailrace.api.chat_prompt import encode_chat
from tailrace.api.chunks import dump_params
from tailrace.api.explanations import encode_records, size_of
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
from tailrace.api.response_events import ResponseEvents
from tailrace.api.response_input import read_chat
from tailrace.api.response_logprobs import ScoredSegments
from tailrace.api.response_saver import ResponseSaver
from tailrace.api.routes.tokenize import check_body_size
from tailrace.api.sampling import num_logprobs
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.schema.responses import (
    LOGPROBS,
    RESPONSES_REFUSED,
    Event,
    InputDetails,
    OutputDetails,
    ResponseError,
    ResponseObject,
    ResponsesRequest,
    ResponseTokens,
    ResponseUsage,
    TextOptions,
)
from tailrace.api.service import Service
from tailrace.api.streaming import NAMED, json_response, make_response
from tailrace.api.tool_kinds import Offered
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_stored
from tailrace.errors import ParameterError, TailraceError
from tailrace.text.splitter import ReasoningTokens

READER = BodyReader(ResponsesRequest, RESPONSES_REFUSED)


@answers(READER)
async def create_response(received: Received[ResponsesRequest]) -> Response:
    """A response, streamed or whole."""
    ask, service = received.ask, received.service
    prepared, channels, chat, offered = await prepare_response(received)
    check_gathered(prepared)  # the last events have the whole response
    top = prepared.params.logprobs
    # the id is ours, since responses are stored by it; what a client calls its request may be used by others as well
    origin = received.origin("chat", ask)
    generation = start_generation(service, f"resp_{uuid4().hex}", prepared, origin)
    instructions = 0 if ask.instructions is None else 1  # they are for this turn alone
    messages: list[dict[str, Any]] = msgspec.to_builtins(chat.messages[instructions:])
    share = received.front.responses.share_of(received.user)
    response = response_of(service, ask, generation)
    saver = ResponseSaver(share, received.front.file, response, messages, ask.streamed)
    splitter = channels.make_splitter()
    generation.thoughts = [ReasoningTokens(splitter)] if channels.counts else None
    segments = ScoredSegments(splitter, service.labels_for(ask), top, explains=generation.params.explain is not None)
    chunks = stream_events(generation, saver, segments, offered)
    return await make_response(received.request, generation, chunks, last_response, ask.streamed, NAMED)


async def prepare_response(
    received: Received[ResponsesRequest],
) -> tuple[PreparedRequest, Channels, ChatRequest, dict[str, Offered]]:
    """The request as the engine takes it, the channels of the answer, the chat that it is, and how its tools were
    offered.

    Raises:
        RequestError: naming the field.
    """
    ask, before = received.ask, await fetch_conversation(received)
    await resolve_references(received)

    chat, choice, tools = await received.run(lambda: read_chat(ask, before), received.size // JSON_BYTES)
    received.move_tools(tools.places)
    limit = TokenLimit(ask.max_output_tokens, "max_output_tokens")
    given = ChatInput(chat, choice, tools.functions, limit, "input", "text.format")
    top = logprobs_asked(ask, received.service.config.max_logprobs)
    return *await prepare_chat(received, given, top), chat, tools.offered


def response_of(service: Service, ask: ResponsesRequest, generation: Generation) -> ResponseObject:
    """The response before anything is generated."""
    return ResponseObject(
        id=generation.id,
        created_at=int(time.time()),
        instructions=ask.instructions,
        max_output_tokens=ask.max_output_tokens,
        model=service.model_name,
        output=[],
        previous_response_id=ask.previous_response_id,
        store=ask.store is not False,
        temperature=generation.params.temperature,
        top_p=generation.params.top_p,
        tools=ask.tools or [],
        tool_choice=ask.tool_choice or "auto",
        text=ask.text or TextOptions(),
        parallel_tool_calls=ask.parallel_tool_calls is not False,
        metadata=ask.metadata or {},
        reasoning=UNSET if ask.reasoning is None else ask.reasoning,
        sampling_params=dump_params(ask, generation),
    )


async def stream_events(
    generation: Generation, saver: ResponseSaver, segments: ScoredSegments, offered: dict[str, Offered]
) -> AsyncGenerator[Event, None]:
    """The response as it comes.

    Raises:
        TailraceError: it failed before its first event. Later it ends with an event that says so.
    """
    response, writer, begun = saver.response, ResponseEvents(saver.response, saver.note, offered), False
    ids: list[int] = []
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not begun:
                    begun = True
                    saver.begin()
                    for event in writer.begin():
                        yield event
                ids += delta.token_ids
                for counter in generation.thoughts or ():
                    counter.add(delta.offsets)
                found: list[msgspec.Raw] = []
                if delta.explanations:
                    found = await generation.run(partial(encode_records, segments.labels.text, delta), size_of(delta))
                for segment, reports in segments.feed(delta, found):
                    for event in writer.add(segment, reports):
                        yield event
                if delta.finish_reason is not None:
                    usage, whole = usage_of(generation), not segments.splitter.cut_call
                    final = list(writer.end(delta.finish_reason, delta.stop_reason, usage, whole))
                    await saver.finish(generation.origin_of(0, ids))
                    for event in final:
                        yield event
    except TailraceError as error:
        if not begun:
            raise
        response.error, response.usage = ResponseError(error.code, str(error)), usage_of(generation)
        final = list(writer.fail_response())
        await saver.finish()
        for event in final:
            yield event
    finally:
        if response.status == "in_progress" and begun:  # the client left
            list(writer.end("abort", "cancelled", usage_of(generation)))
            saver.end()


async def last_response(stream: AsyncGenerator[Event, None]) -> ResponseObject:
    """The response that the stream ends with."""
    return await last_seen(stream, lambda event: event.response)


@answers(READER)
async def count_input_tokens(received: Received[ResponsesRequest]) -> Response:
    """The tokens of the prompt that the same response would have."""
    check_body_size(received, "input")
    ask, before = received.ask, await fetch_conversation(received)
    await resolve_references(received)
    chat, choice, _ = await received.run(lambda: read_chat(ask, before), received.size // JSON_BYTES)
    ids = await encode_chat(received, chat, choice.mode != "none", "input", bound=False)
    return json_response(ResponseTokens(len(ids)))


async def fetch_conversation(received: Received[ResponsesRequest]) -> bytes:
    """Return the messages of the conversation that this request continues, as JSON; b"" if it continues none.

    Raises:
        ParameterError: together they are larger than a body may be. RequestNotFoundError: the previous response is not
            stored.
    """
    name, previous = "previous_response_id", received.ask.previous_response_id
    if previous is None:
        return b""
    before = await ask_stored(received.request, "conversation", previous, name)
    received.add_bytes(before, name)
    return before


def usage_of(generation: Generation) -> ResponseUsage:
    """The usage so far, under the names of this endpoint."""
    usage = generation.usage
    details = InputDetails(usage.prompt_tokens_details.cached_tokens)
    thoughts = OutputDetails(usage.reasoning_tokens)
    return ResponseUsage(usage.prompt_tokens, details, usage.completion_tokens, thoughts, usage.total_tokens)


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
