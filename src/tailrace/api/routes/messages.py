"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same generation as a chat."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.anthropic_errors import anthropic_body
from tailrace.api.body import BodyReader
from tailrace.api.chat_prompt import encode_chat
from tailrace.api.message_events import PING, MessageEvents, message_events, whole_message
from tailrace.api.messages_input import conversation_of, to_chat
from tailrace.api.prepare import ChatInput, generate, prepare_chat, read_request
from tailrace.api.request_record import origin_of
from tailrace.api.routes.chat import ChatChunks
from tailrace.api.routes.tokenize import check_size
from tailrace.api.schema.errors import ErrorBody
from tailrace.api.schema.messages import (
    MESSAGES_REFUSED,
    NOT_SERVED,
    CountRequest,
    InputTokens,
    MessagesRequest,
)
from tailrace.api.service import Service
from tailrace.api.streaming import EventFormat, json_response, named_frame, respond
from tailrace.api.work_queue import JSON_BYTES
from tailrace.errors import ParameterError

READER = BodyReader(MessagesRequest, MESSAGES_REFUSED)
COUNT_READER = BodyReader(CountRequest, NOT_SERVED)


def frame(event: msgspec.Struct) -> bytes:
    """One event; an error in Anthropic's shape."""
    return named_frame(anthropic_body(event) if isinstance(event, ErrorBody) else event)


EVENTS = EventFormat(frame, b"", PING)


async def create_message(request: Request) -> Response:
    """A message, streamed or whole."""
    ask, service = await read_request(request, READER)

    def checked() -> ChatInput:
        check_thinking(service, ask)
        return to_chat(ask)

    chat = await service.work_queue.run(request, checked, request.state.size // JSON_BYTES)
    prepared, channels = await prepare_chat(request, chat)
    origin = origin_of(request, "chat", ask)
    generation = generate(service, f"msg_{origin.request_id}", prepared, origin)
    chunks = ChatChunks(service, chat.ask, generation, channels).stream()
    omit = ask.thinking is not None and ask.thinking.display == "omitted"
    writer = MessageEvents(lambda: generation.usage, omit, capped=(prepared.params.max_tokens or 0) < ask.max_tokens)
    return await respond(request, generation, message_events(chunks, writer), whole_message, ask.streamed, EVENTS)


def check_thinking(service: Service, ask: MessagesRequest) -> None:
    """Raise ParameterError for a budget that can't be kept."""
    if ask.thinking is not None and ask.thinking.budget_tokens is not None and service.reasoning is None:
        raise ParameterError(
            "thinking.budget_tokens: how this model marks its thinking is not known (--reasoning-parser names it)",
            "thinking.budget_tokens",
        )


async def count_tokens(request: Request) -> Response:
    """The tokens of the prompt that the same messages would make."""
    ask, service = await read_request(request, COUNT_READER)
    check_size(request, "messages")
    chat, choice = await service.work_queue.run(request, lambda: conversation_of(ask), request.state.size // JSON_BYTES)
    ids = await encode_chat(request, chat, choice.mode != "none", bound=False)
    return json_response(InputTokens(len(ids)))
