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


class Skill(msgspec.Struct):
    """A folder with instructions for a task."""

    name: Any = None
    description: Any = None
    path: Any = None


class ShellEnvironment(msgspec.Struct):
    """Where a shell runs. The rest: of containers."""

    OTHERS: ClassVar = frozenset({"container_id", "file_ids", "memory_limit", "network_policy"})
    type: Any = None
    skills: list[Skill] | None = None


class LocalShellTool(msgspec.Struct, tag_field="type", tag="local_shell"):
    """A shell of one command, which the client runs."""

    OTHERS: ClassVar = OF_TOOLS


class ShellTool(msgspec.Struct, tag_field="type", tag="shell"):
    """A shell of several commands."""

    OTHERS: ClassVar = OF_TOOLS
    environment: ShellEnvironment | None = None


class ApplyPatchTool(msgspec.Struct, tag_field="type", tag="apply_patch"):
    """An editor of files."""

    OTHERS: ClassVar = OF_TOOLS


class ItemAction(msgspec.Struct, omit_defaults=True):
    """What a call does: the `command` of local_shell, the `commands` of shell, or what another server's tool did."""

    type: Any = None
    command: Any = None
    env: Any = None
    user: Any = None
    working_directory: Any = None
    commands: Any = None
    max_output_length: Any = None
    timeout_ms: Any = None
    query: Any = None
    queries: Any = None
    sources: Any = None
    url: Any = None
    pattern: Any = None
    button: Any = None
    x: Any = None
    y: Any = None
    path: Any = None
    scroll_x: Any = None
    scroll_y: Any = None
    keys: Any = None
    text: Any = None


class PatchOperation(msgspec.Struct, omit_defaults=True):
    """What an editor did with a file."""

    type: Any = None
    path: Any = None
    diff: Any = None


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
FlatTool = Annotated[
    dict[str, Any],
    named_by(FlatFunctionTool, CustomTool, NamespaceTool, LocalShellTool, ShellTool, ApplyPatchTool),
]
ToolChoice = Annotated[dict[str, Any], named_by(ToolChoiceNames)]
