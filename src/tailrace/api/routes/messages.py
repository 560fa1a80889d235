"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same generation as a chat."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from tailrace.api.anthropic_errors import anthropic_body
from tailrace.api.body import BodyReader
from tailrace.api.chat_prompt import encode_chat
from tailrace.api.message_events import PING, MessageEvents, message_events, whole_message
from tailrace.api.messages_input import conversation_of, to_chat
from tailrace.api.prepare import prepare_chat, start_generation
from tailrace.api.received import Received, answers
from tailrace.api.resumption import answer_resumably, check_stream_fields
from tailrace.api.routes.chat import ChatChunks
from tailrace.api.routes.tokenize import check_body_size
from tailrace.api.schema.errors import ErrorBody
from tailrace.api.schema.messages import (
    MESSAGES_REFUSED,
    NOT_SERVED,
    CountRequest,
    InputTokens,
    MessagesRequest,
)
from tailrace.api.streaming import EventFormat, json_response, make_response, named_frame
from tailrace.api.work_queue import JSON_BYTES

READER = BodyReader(MessagesRequest, MESSAGES_REFUSED)
COUNT_READER = BodyReader(CountRequest, NOT_SERVED)


def frame_message_event(event: msgspec.Struct) -> bytes:
    """One event; an error in Anthropic's shape."""
    return named_frame(anthropic_body(event) if isinstance(event, ErrorBody) else event)


EVENTS = EventFormat(frame_message_event, b"", PING)


@answers(READER)
async def create_message(received: Received[MessagesRequest]) -> Response:
    """A message, streamed or whole."""
    check_stream_fields(received)
    ask, service = received.ask, received.service
    chat = await received.run(lambda: to_chat(ask), received.size // JSON_BYTES)
    prepared, channels = await prepare_chat(received, chat)
    origin = received.origin("chat", ask)
    generation = start_generation(service, f"msg_{origin.request_id}", prepared, origin)
    chunks = ChatChunks(service, chat.ask, generation, channels).stream()
    omit = ask.thinking is not None and ask.thinking.display == "omitted"
    capped = (prepared.params.max_tokens or 0) < ask.max_tokens
    writer = MessageEvents(lambda: generation.usage, omit, capped, managed=ask.context_management is not None)
    events = message_events(chunks, writer)
    if ask.resumable:
        return await answer_resumably(received, generation, events, EVENTS)
    return await make_response(received.request, generation, events, whole_message, ask.streamed, EVENTS)


@answers(COUNT_READER)
async def count_tokens(received: Received[CountRequest]) -> Response:
    """The tokens of the prompt that the same messages would make."""
    check_body_size(received, "messages")
    chat, choice = await received.run(lambda: conversation_of(received.ask), received.size // JSON_BYTES)
    ids = await encode_chat(received, chat, choice.mode != "none", bound=False)
    return json_response(InputTokens(len(ids)))
