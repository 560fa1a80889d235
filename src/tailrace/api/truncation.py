"""`truncation: auto` of /v1/responses: the oldest messages are left out until the prompt fits. Knows no HTTP."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
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
    choices = Cuts(messages)
    low, high = 0, len(choices)
    while low < high:
        middle = (low + high) // 2
        if await fits(choices[middle]):
            high = middle
        else:
            low = middle + 1
    return choices[low] if low < len(choices) else None


class Cuts(Sequence[list[ChatMessage]]):
    """What may be left of the messages, the longest first. Each is made when it is read: there are as many as turns.

    Instructions stay, and so do the last message of the user and the last turn. Before the user's last message, whole
    exchanges are left out, each with the message of the user that begins it: a template may refuse a conversation that
    begins with an answer. After it, turns of the model are left out, each with the results of its calls.
    """

    def __init__(self, messages: list[ChatMessage]) -> None:
        self._messages = messages
        self._asked = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        users = [i for i, message in enumerate(messages) if message.role == "user" and i > 0]
        after = range(self._asked + 1, len(messages))
        turns = [i for i in after if messages[i].role not in ("tool", *ALWAYS)]
        self._starts = users + turns[1:]
        # The first ones may leave nothing out. Later ones are parts of earlier ones.
        self._starts = self._starts[bisect_left(self._starts, True, key=self._is_shorter) :]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: Any) -> Any:
        return self._cut(self._starts[number])

    def _is_shorter(self, start: int) -> bool:
        return len(self._cut(start)) < len(self._messages)

    def _cut(self, start: int) -> list[ChatMessage]:
        return keep_pairs(self._messages, {self._asked, *range(start, len(self._messages))} - {-1})


def keep_pairs(messages: list[ChatMessage], kept: set[int]) -> list[ChatMessage]:
    """Return the instructions and the kept messages, but for results whose call is not kept."""
    calls = {call.get("id") for i in kept for call in messages[i].tool_calls or ()}
    return [
        message
        for i, message in enumerate(messages)
        if message.role in ALWAYS or (i in kept and (message.role != "tool" or message.tool_call_id in calls))
    ]
