"""Chunks of a chat → the blocks and events of a message, in Anthropic's order: a block starts, grows, and stops before
the next one starts."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from tailrace.api.aggregate import last_seen
from tailrace.api.schema.chat import ChatChunk
from tailrace.api.schema.chat_calls import ToolCallDelta
from tailrace.api.schema.common import Usage
from tailrace.api.schema.messages import (
    AppliedEdits,
    Block,
    InputJsonDelta,
    MessageEvent,
    MessageObject,
    MessageUsage,
    OutputTokensDetails,
    SignatureDelta,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from tailrace.text.templates.turns import INVALID

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
# a chat's finish reason → the stop reason; what stopped it distinguishes a stop string
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageEvents:
    """One message as it grows. Each method returns the events to send.

    Args:
        usage: the tokens so far. omit: leave out what the model thinks. capped: the context has room for fewer tokens
            than the request allows. managed: the request has context_management.
    """

    def __init__(self, usage: Callable[[], Usage], omit: bool, capped: bool, managed: bool = False) -> None:
        self.message: MessageObject | None = None
        self._usage, self._omit, self._capped = usage, omit, capped
        self._edits = AppliedEdits() if managed else UNSET
        self._block: Block | None = None  # the open one
        self._text: list[str] = []

    def add(self, chunk: ChatChunk) -> Iterator[MessageEvent]:
        """What a chunk brings."""
        if self.message is None:
            self.message = MessageObject(
                id=chunk.id,
                model=chunk.model,
                content=[],
                usage=usage_of(self._usage()),
                context_management=self._edits,
                sampling_params=chunk.sampling_params,
            )
            yield MessageEvent(type="message_start", message=self.message)
        for choice in chunk.choices:
            delta = choice.delta
            if delta.thought:
                yield from self._extend_block(ThinkingBlock, delta.thought)
            if delta.content:
                yield from self._extend_block(TextBlock, delta.content)
            for call in delta.tool_calls or ():
                yield from self._add_call(call)
            if choice.finish_reason is not None:
                yield from self._close_block()
                self._set_stop_reason(choice.finish_reason, choice.stop_reason)

    def end(self) -> Iterator[MessageEvent]:
        """All chunks have come."""
        message = self.message
        assert message is not None
        assert message.stop_reason is not None
        message.usage = usage_of(self._usage())
        delta = StopDelta(message.stop_reason, message.stop_sequence)
        edits = self._edits
        yield MessageEvent(type="message_delta", delta=delta, usage=message.usage, context_management=edits)
        yield MessageEvent(type="message_stop")

    def _set_stop_reason(self, finish_reason: str, stopped_by: Any) -> None:
        assert self.message is not None
        reason = REASONS.get(finish_reason, "pause_turn")
        if reason == "end_turn" and isinstance(stopped_by, str):
            reason, self.message.stop_sequence = "stop_sequence", stopped_by
        if reason == "max_tokens" and self._capped:
            reason = "model_context_window_exceeded"
        self.message.stop_reason = reason

    @property
    def _index(self) -> int:
        assert self.message is not None
        return len(self.message.content) - 1

    def _open_block(self, block: Block) -> Iterator[MessageEvent]:
        yield from self._close_block()
        assert self.message is not None
        self.message.content.append(block)
        self._block = block
        yield MessageEvent(type="content_block_start", index=self._index, content_block=block)

    def _extend_block(self, kind: type[TextBlock] | type[ThinkingBlock], text: str) -> Iterator[MessageEvent]:
        if not isinstance(self._block, kind):
            yield from self._open_block(TextBlock("") if kind is TextBlock else ThinkingBlock("", ""))
        self._text.append(text)
        if kind is TextBlock:
            yield self._make_delta_event(TextDelta(text))
        elif not self._omit:
            yield self._make_delta_event(ThinkingDelta(text))

    def _add_call(self, call: ToolCallDelta) -> Iterator[MessageEvent]:
        function = call.function
        assert function is not msgspec.UNSET  # Anthropic has no custom tools in this sense.
        if function.name:
            yield from self._open_block(ToolUseBlock(call.id or "", function.name, {}))
        if function.arguments:
            self._text.append(function.arguments)
            yield self._make_delta_event(InputJsonDelta(function.arguments))

    def _make_delta_event(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta) -> MessageEvent:
        return MessageEvent(type="content_block_delta", index=self._index, delta=delta)

    def _close_block(self) -> Iterator[MessageEvent]:
        block, text = self._block, "".join(self._text)
        self._block, self._text = None, []
        match block:
            case None:
                return
            case TextBlock():
                block.text = text
            case ThinkingBlock():
                block.thinking, block.signature = "" if self._omit else text, hash_thought(text)
                yield self._make_delta_event(SignatureDelta(block.signature))
            case ToolUseBlock():
                block.input = input_of(text)
                if not text:  # A client would take a call without any input for a complete one.
                    yield self._make_delta_event(InputJsonDelta(msgspec.json.encode(block.input).decode()))
        yield MessageEvent(type="content_block_stop", index=self._index)


def hash_thought(thought: str) -> str:
    """A digest of a thought. Clients want one and hand it back; nothing depends on it."""
    return hashlib.sha256(thought.encode()).hexdigest()


def input_of(arguments: str) -> dict[str, Any]:
    """A call's input. A call that was cut may have arguments that are no JSON object, or none: a complete call without
    arguments has "{}" from every format. A stream ends such a call with the incomplete JSON, as Anthropic's server."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {INVALID: arguments}


def usage_of(usage: Usage) -> MessageUsage:
    """The usage so far, under the names of this endpoint."""
    cached, thoughts = usage.prompt_tokens_details.cached_tokens, OutputTokensDetails(usage.reasoning_tokens)
    return MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached, thoughts)


async def message_events(
    chunks: AsyncGenerator[ChatChunk, None], writer: MessageEvents
) -> AsyncGenerator[MessageEvent, None]:
    """The message as it comes. `chunks` is closed in every case; its errors are passed on."""
    async with aclosing(chunks):
        async for chunk in chunks:
            for event in writer.add(chunk):
                yield event
    for event in writer.end():
        yield event


async def whole_message(events: AsyncGenerator[MessageEvent, None]) -> MessageObject:
    """The message that the events build. `events` is closed in every case."""
    return await last_seen(events, lambda event: event.message)
