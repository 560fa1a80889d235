"""The items of /v1/responses: those of an input, and those of an output."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.schema.chat import OF_PARTS, Role
from tailrace.api.schema.explain import ExplanationJson
from tailrace.api.schema.tools import ItemAction, PatchOperation

OwnItem = Literal[
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "reasoning",
    "compaction",
    "compaction_summary",
    "item_reference",
]
# of tools that are not served here (foreign_calls.py)
ForeignItem = Literal[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "tool_search_call",
    "tool_search_output",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "program",
    "program_output",
]


class CommandOutcome(msgspec.Struct):
    """How a command of a `shell` has ended: "exit" or "timeout"."""

    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class InputPart(msgspec.Struct, omit_defaults=True):
    """One part of an input message; only text is served, also that of a refusal. The output of a `shell` has parts
    without a type."""

    OTHERS: ClassVar = OF_PARTS | {"created_by"}
    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    outcome: CommandOutcome | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """A message (`type` may be left out), a tool call of before, its output, or reasoning of before: its
    `encrypted_content`, else its `content`, else its `summary`. A compaction has `encrypted_content`. An item_reference
    (`type` may be left out) names a stored item by its `id`. Calls of tools that another server has run become text of
    the model's turn."""

    OTHERS: ClassVar = frozenset(
        {"phase", "caller", "async", "created_by", "background", "output_format"} | {"quality", "size", "svg_usage"}
    )
    type: Literal[OwnItem, ForeignItem] | None = None
    id: str | None = None
    role: Role | None = None
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    action: ItemAction | None = None
    operation: PatchOperation | None = None
    output: str | list[InputPart] | InputPart | None = None
    status: str | None = None
    environment: Any = None
    max_output_length: Any = None
    # of calls that another server has run
    queries: Any = None
    results: Any = None
    code: Any = None
    container_id: Any = None
    outputs: Any = None
    actions: Any = None
    pending_safety_checks: Any = None
    acknowledged_safety_checks: Any = None
    execution: Any = None
    tools: Any = None
    server_label: Any = None
    approval_request_id: Any = None
    approve: Any = None
    reason: Any = None
    error: Any = None
    revised_prompt: Any = None
    result: Any = None
    fingerprint: Any = None

    @property
    def is_reference(self) -> bool:
        """The item stands for a stored one."""
        nothing = self.role is None and self.content is None
        return self.type == "item_reference" or (self.type is None and nothing and self.id is not None)


class OutputPart(msgspec.Struct, omit_defaults=True):
    """Content ("output_text") or reasoning ("reasoning_text")."""

    type: str
    text: str
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[msgspec.Raw] | UnsetType = UNSET
    explanations: list[ExplanationJson] | UnsetType = UNSET


class OutputItem(msgspec.Struct, omit_defaults=True):
    """A message, a stretch of reasoning, or a call of a tool. A call's input: `arguments` of a function, `input` of a
    custom tool, `action` of a shell, `operation` of apply_patch."""

    id: str
    type: str
    status: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    content: list[OutputPart] | UnsetType = UNSET
    summary: list[Any] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    action: dict[str, Any] | UnsetType = UNSET
    operation: dict[str, Any] | UnsetType = UNSET
