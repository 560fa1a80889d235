"""Tools, tool choices and earlier calls: names that these objects may have. Bodies keep them as they come."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from tailrace.api.nested_names import named_by

# names that vendors have for tools of every type; they change nothing here
OF_TOOLS = frozenset(
    {"cache_control", "defer_loading", "allowed_callers", "eager_input_streaming", "input_examples", "output_schema"}
    | {"async"}
)


class ToolFunction(msgspec.Struct):
    """A function."""

    OTHERS: ClassVar = OF_TOOLS
    name: Any = None
    description: Any = None
    parameters: Any = None
    strict: Any = None


class GrammarOfText(msgspec.Struct):
    """A grammar."""

    syntax: Any = None
    definition: Any = None


class CustomFormat(GrammarOfText):
    """What the text of a custom tool must be."""

    type: Any = None
    grammar: GrammarOfText | None = None


class CustomTool(msgspec.Struct, tag_field="type", tag="custom"):
    """A tool whose input is text."""

    OTHERS: ClassVar = OF_TOOLS
    name: Any = None
    description: Any = None
    format: CustomFormat | None = None


class ChatFunctionTool(msgspec.Struct, tag_field="type", tag="function"):
    """A function of a chat."""

    OTHERS: ClassVar = OF_TOOLS | {"strict"}
    function: ToolFunction | None = None


class ChatCustomTool(msgspec.Struct, tag_field="type", tag="custom"):
    """A custom tool of a chat."""

    OTHERS: ClassVar = OF_TOOLS
    custom: CustomTool | None = None


class FlatFunctionTool(ToolFunction, tag_field="type", tag="function"):
    """A function of /v1/responses."""


class NamespaceTool(msgspec.Struct, tag_field="type", tag="namespace"):
    """Tools with a common name."""

    OTHERS: ClassVar = OF_TOOLS
    name: Any = None
    description: Any = None
    tools: list[FlatFunctionTool | CustomTool] | None = None


class ToolName(msgspec.Struct):
    """Names a tool."""

    name: Any = None


class NamedTool(ToolName):
    """A tool that is called, or may be."""

    type: Any = None
    namespace: Any = None
    function: ToolName | None = None
    custom: ToolName | None = None


class AllowedTools(msgspec.Struct):
    """Tools that may be called."""

    mode: Any = None
    tools: list[NamedTool] | None = None


class ToolChoiceNames(NamedTool):
    """A tool choice, in the form of chats or of /v1/responses."""

    mode: Any = None
    tools: list[NamedTool] | None = None
    allowed_tools: AllowedTools | None = None


ChatTool = Annotated[dict[str, Any], named_by(ChatFunctionTool, ChatCustomTool)]
FlatTool = Annotated[dict[str, Any], named_by(FlatFunctionTool, CustomTool, NamespaceTool)]
ToolChoice = Annotated[dict[str, Any], named_by(ToolChoiceNames)]
