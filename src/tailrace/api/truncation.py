"""`truncation: auto` of /v1/responses: the oldest messages are left out until the prompt fits. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tailrace.api.channels import Channels
from tailrace.api.chat_prompt import encode_chat
from tailrace.api.prepare import ChatInput, PreparedRequest, prepare_chat
from tailrace.api.received import Received
from tailrace.api.schema.chat import ChatMessage
from tailrace.errors import ContextLengthError, ParameterError

ALWAYS = ("system", "developer")  # roles whose messages are never left out
ROOM = 8  # an answer without a limit gets one part in so many of the context


async def prepare_truncated(
    received: Received[Any], chat: ChatInput, logprobs: int | None = None
) -> tuple[PreparedRequest, Channels]:
    """See prepare_chat. If the chat does not fit the context, its oldest messages are left out.

    Raises:
        RequestError: see prepare_chat; also if the instructions and the last turn alone do not fit.
    """
    try:
        return await prepare_chat(received, chat, logprobs)
    except (ContextLengthError, ParameterError) as error:
        if not isinstance(error, ContextLengthError) and error.param != chat.limit.field:
            raise
        most = received.service.client.model.max_model_len
        room = chat.limit.max_tokens or most // ROOM

        async def fits(messages: list[ChatMessage]) -> bool:
            ask = msgspec.structs.replace(chat.ask, messages=messages)
            try:
                prompt = await encode_chat(received, ask, chat.choice.mode != "none", chat.messages_field)
            except ContextLengthError:
                return False
            return len(prompt) + room <= most

        messages = await fit_messages(chat.ask.messages, fits)
        if messages is None:
            raise
    ask = msgspec.structs.replace(chat.ask, messages=messages)
    return await prepare_chat(received, chat._replace(ask=ask), logprobs)


async def fit_messages(
    messages: list[ChatMessage], fits: Callable[[list[ChatMessage]], Awaitable[bool]]
) -> list[ChatMessage] | None:
    """Return the messages without the fewest of the oldest ones that must be left out; None if that is not enough.

    Args:
        fits: whether the prompt of some messages fits. It fits also if more of them are left out.
    """
    choices = list_cuts(messages)
    low, high = 0, len(choices)
    while low < high:
        middle = (low + high) // 2
        if await fits(choices[middle]):
            high = middle
        else:
            low = middle + 1
    return choices[low] if low < len(choices) else None


def list_cuts(messages: list[ChatMessage]) -> list[list[ChatMessage]]:
    """Return what may be left of the messages, the longest first.

    Instructions stay, and so do the last message of the user and the last turn. Before the user's last message, whole
    exchanges are left out, each with the message of the user that begins it: a template may refuse a conversation that
    begins with an answer. After it, turns of the model are left out, each with the results of its calls.
    """
    asked = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    starts = [i for i, message in enumerate(messages) if message.role == "user" and 0 < i <= asked]
    turns = [i for i, message in enumerate(messages) if i > asked and message.role not in ("tool", *ALWAYS)]
    cuts: list[list[ChatMessage]] = []
    for start in starts:
        cuts.append(keep_pairs(messages, {i for i in range(len(messages)) if i >= start}))
    for start in turns[1:]:
        cuts.append(keep_pairs(messages, {i for i in range(len(messages)) if i == asked or i >= start}))
    return [cut for cut in cuts if len(cut) < len(messages)]


def keep_pairs(messages: list[ChatMessage], kept: set[int]) -> list[ChatMessage]:
    """Return the instructions and the kept messages, but for results whose call is not kept."""
    calls = {call.get("id") for i in kept for call in messages[i].tool_calls or ()}
    return [
        message
        for i, message in enumerate(messages)
        if message.role in ALWAYS or (i in kept and (message.role != "tool" or message.tool_call_id in calls))
    ]
