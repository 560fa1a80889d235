"""POST /v1/responses; GET and DELETE /v1/responses/{id}; POST /v1/responses/{id}/cancel."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import chain
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.body import BodyReader, check_items
from tailrace.api.chunks import effective
from tailrace.api.front_end import front_of
from tailrace.api.generation import Generation
from tailrace.api.prepare import ChatInput, TokenLimit, prepare_chat, read_request
from tailrace.api.request_record import origin_of
from tailrace.api.response_events import ResponseEvents
from tailrace.api.response_input import to_chat, to_messages
from tailrace.api.response_store import ResponseStore
from tailrace.api.schema.requests import Cancelled
from tailrace.api.schema.responses import (
    RESPONSES_REFUSED,
    Deleted,
    Event,
    InputDetails,
    OutputDetails,
    ResponseError,
    ResponseObject,
    ResponsesRequest,
    ResponseUsage,
    TextOptions,
)
from tailrace.api.service import Service
from tailrace.api.streaming import NAMED, json_response, respond
from tailrace.api.tool_choice import choice_of
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_all, ask_first, ask_stored
from tailrace.errors import ParameterError, TailraceError
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.tool_parsers.functions import check_tools

READER = BodyReader(ResponsesRequest, RESPONSES_REFUSED)
JSON = "application/json"


async def create_response(request: Request) -> Response:
    """A response, streamed or whole."""
    ask, service = await read_request(request, READER)
    before = await earlier(request, ask)

    def checked() -> ChatInput:
        check_tools(ask.tools, nested=False)
        choice = choice_of(ask.tool_choice, ask.tools, ask.parallel_tool_calls)
        limit = TokenLimit(ask.max_output_tokens, "max_output_tokens")
        return ChatInput(to_chat(ask, before), choice, ask.tools, limit, "input", "text.format")

    chat = await service.work_queue.run(request, checked, request.state.size // JSON_BYTES)
    prepared, channels = await prepare_chat(request, chat)
    # the id is ours, since responses are stored by it; what a client calls its request may be used by others as well
    origin = origin_of(request, "chat", ask)
    generation = Generation(
        service, f"resp_{uuid4().hex}", prepared.prompts, prepared.params, origin, prepared.grammar_field
    )
    instructions = 0 if ask.instructions is None else 1  # they are for this turn alone
    messages: list[dict[str, Any]] = msgspec.to_builtins(chat.ask.messages[instructions:])
    stored = StoredResponse(front_of(request).responses, response_of(service, ask, generation), messages)
    chunks = events(generation, stored, ChannelSplitter(*channels))
    return await respond(request, generation, chunks, last_response, ask.streamed, NAMED)


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
        sampling_params=effective(ask, generation),
    )


class StoredResponse(NamedTuple):
    """A response, where it is stored, and the messages that it answers."""

    store: ResponseStore
    response: ResponseObject
    messages: list[dict[str, Any]]

    def save(self) -> None:
        """Store the response as it is now, with the conversation that it ends, if it is to be stored."""
        if self.response.store:
            self.store.put(self.response, [*self.messages, *to_messages(self.response.output)])

    def update(self) -> None:
        """The same, unless the response was deleted meanwhile."""
        if self.response.id in self.store:
            self.save()


async def events(
    generation: Generation, stored: StoredResponse, channels: ChannelSplitter
) -> AsyncGenerator[Event, None]:
    """The response as it comes.

    Raises:
        TailraceError: it failed before its first event. Later it ends with an event that says so.
    """
    response, writer, begun = stored.response, ResponseEvents(stored.response), False
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not begun:
                    begun = True
                    stored.save()
                    for event in writer.begin():
                        yield event
                segments = channels.feed(delta.text)
                if delta.finish_reason is not None:
                    segments += channels.flush()
                for event in chain.from_iterable(map(writer.add, segments)):
                    yield event
                if delta.finish_reason is not None:
                    usage, whole = usage_of(generation), not channels.cut_call
                    final = list(writer.end(delta.finish_reason, delta.stop_reason, usage, whole))
                    stored.update()
                    for event in final:
                        yield event
    except TailraceError as error:
        if not begun:
            raise
        response.error, response.usage = ResponseError(error.code, str(error)), usage_of(generation)
        final = list(writer.failed())
        stored.update()
        for event in final:
            yield event
    finally:
        if response.status == "in_progress" and begun:  # the client left
            list(writer.end("abort", "cancelled", usage_of(generation)))
            stored.update()


async def last_response(stream: AsyncGenerator[Event, None]) -> ResponseObject:
    """The response that the stream ends with."""
    response: ResponseObject | None = None
    async with aclosing(stream):
        async for event in stream:
            response = event.response or response
    assert response is not None
    return response


async def retrieve_response(request: Request) -> Response:
    """A stored response, also while it is in progress."""
    body = await ask_stored(front_of(request), "response", request.path_params["id"])
    return Response(body, media_type=JSON)


async def delete_response(request: Request) -> Response:
    """Delete a stored response."""
    id = request.path_params["id"]
    await ask_stored(front_of(request), "forget", id)
    return json_response(Deleted(id))


async def cancel_response(request: Request) -> Response:
    """End a response that is in progress; its output so far stays."""
    front, id = front_of(request), request.path_params["id"]
    found = await ask_all(front, "cut", id) if id.startswith("resp_") else []
    if not found:
        return Response(await ask_stored(front, "response", id), media_type=JSON)
    body = await ask_first(front, "response", id)
    if body is None:  # no token has come yet, or the response is not to be stored
        return json_response(Cancelled(id))
    return Response(body.replace(b'"status":"in_progress"', b'"status":"cancelled"', 1), media_type=JSON)


async def earlier(request: Request, ask: ResponsesRequest) -> bytes:
    """The messages of the conversation that this request goes on with, as JSON; b"" for none.

    Raises:
        ParameterError: together they are larger than a body may be. RequestNotFoundError: the previous response is not
            stored.
    """
    if ask.previous_response_id is None:
        return b""
    name, front = "previous_response_id", front_of(request)
    before = await ask_stored(front, "conversation", ask.previous_response_id, name)
    if (size := len(before) + request.state.size) > (most := front.config.max_body_mib << 20):
        raise ParameterError(f"{name}: the whole conversation must have at most {most} bytes, got {size}", name)
    check_items(before, front.config.max_body_items)
    request.state.size = size  # from here on both are read and rendered
    return before


def usage_of(generation: Generation) -> ResponseUsage:
    """The usage so far, under the names of this endpoint."""
    usage = generation.usage
    details = InputDetails(usage.prompt_tokens_details.cached_tokens)
    return ResponseUsage(usage.prompt_tokens, details, usage.completion_tokens, OutputDetails(), usage.total_tokens)
