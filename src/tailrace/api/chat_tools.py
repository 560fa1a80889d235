"""Custom tools in chats: functions for the model, and calls of these functions as the client's own in the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from tailrace.api.custom_tools import CustomInput, make_custom_function
from tailrace.api.schema.chat import ChatDelta, ChatRequest
from tailrace.api.schema.chat_calls import CustomDelta, FunctionDelta, ToolCallDelta
from tailrace.api.tool_choice import ToolChoice, choice_of
from tailrace.text.splitter import Segment
from tailrace.text.tool_parsers import ToolCall
from tailrace.text.tool_parsers.functions import check_tools
from tailrace.text.tool_parsers.lark_source import LarkGrammar


def read_tools(ask: ChatRequest) -> ToolChoice:
    """Return which tools the model may call. Custom tools of the request become functions.

    Raises:
        ParameterError: a tool, or the choice, is malformed.
    """
    check_tools(ask.tools, nested=True)
    choice = choice_of(ask.tool_choice, ask.tools, ask.parallel_tool_calls)
    ask.tools, custom = flatten_tools(ask.tools)
    return choice._replace(custom=custom)


class ChatTools(NamedTuple):
    """Tools, with functions in the place of custom tools. custom: name of such a function → the Lark grammar of its
    text."""

    tools: list[dict[str, Any]] | None
    custom: dict[str, LarkGrammar | None]


def flatten_tools(tools: list[dict[str, Any]] | None) -> ChatTools:
    """Return tools that passed `check_tools`, as functions.

    Raises:
        ParameterError: a format is malformed, or can't be enforced.
    """
    if tools is None:
        return ChatTools(None, {})
    flat: list[dict[str, Any]] = []
    custom: dict[str, LarkGrammar | None] = {}
    for i, tool in enumerate(tools):
        if tool.get("type") != "custom":
            flat.append(tool)
            continue
        function, custom[tool["custom"]["name"]] = make_custom_function(
            tool["custom"], f"tools[{i}].custom", nested=True
        )
        flat.append({"type": function.pop("type"), "function": function})
    return ChatTools(flat, custom)


class DeltaWriter:
    """A writer of one choice's segments as deltas.

    Args:
        thought_names: what thoughts are called; none: thoughts are left out. custom: the functions that stand for
            custom tools.
    """

    def __init__(self, thought_names: Sequence[str], custom: Collection[str] = ()) -> None:
        self._thought_names, self._custom = thought_names, custom
        self._open: tuple[int, CustomInput] | None = None  # The call of a custom tool that may go on, and its place.

    def write(self, segment: Segment) -> Iterator[ChatDelta]:
        """Yield the deltas of a segment."""
        if segment.call is None or segment.call.name:
            yield from self.end()
        if segment.call is not None:
            yield from self._write_call(segment.call)
        elif segment.channel != "reasoning":
            yield ChatDelta(content=segment.text)
        elif self._thought_names:
            yield msgspec.structs.replace(ChatDelta(), **dict.fromkeys(self._thought_names, segment.text))

    def end(self) -> Iterator[ChatDelta]:
        """Yield what is left of the call that was open, which has ended."""
        if self._open is not None:
            (place, reader), self._open = self._open, None
            yield from make_input_delta(place, reader.end())

    def _write_call(self, call: ToolCall) -> Iterator[ChatDelta]:
        place, name, arguments, id = call
        id = (id or f"call_{uuid4().hex[:24]}") if name else None
        if name in self._custom:
            self._open = place, CustomInput()
            head = ToolCallDelta(index=place, id=id or "", type="custom", custom=CustomDelta(name=name, input=""))
            yield ChatDelta(tool_calls=[head])
        if self._open is not None:
            yield from make_input_delta(place, self._open[1].feed(arguments))
        elif id is None:
            yield ChatDelta(tool_calls=[ToolCallDelta(index=place, function=FunctionDelta(arguments=arguments))])
        else:
            function = FunctionDelta(name=name, arguments=arguments)
            yield ChatDelta(tool_calls=[ToolCallDelta(index=place, id=id, type="function", function=function)])


def make_input_delta(place: int, text: str) -> Iterator[ChatDelta]:
    """Yield the delta of more input of a custom tool's call, if there is any."""
    if text:
        yield ChatDelta(tool_calls=[ToolCallDelta(index=place, custom=CustomDelta(input=text))])
