"""The turns of /v1/messages, and the blocks that they have."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET


class MessageBlock(msgspec.Struct, kw_only=True):
    """A part of a message or of a tool's result. Which fields it has depends on its type: `text` (text), `thinking`
    (thinking, signature), `redacted_thinking` (data), `tool_use` (id, name, input), `tool_result` (tool_use_id,
    content, is_error), `tool_reference` (tool_name; in a tool_result), `search_result` and `document` (title, source,
    content). Calls of tools that another server has run become text."""

    OTHERS: ClassVar = frozenset(
        {"cache_control", "citations", "caller", "signature", "data", "transformations", "file_id", "toolset_name"}
        | {"encrypted_content", "encrypted_stdout", "retrieved_at", "file_type", "num_lines", "start_line", "from"}
        | {"total_lines", "old_lines", "old_start", "new_lines", "new_start", "tools", "tool_changes", "to", "trigger"}
        | {"stop_reason"}
    )
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = UNSET
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: str | list[MessageBlock] | MessageBlock | None = None
    is_error: bool | None = None
    title: Any = None
    context: Any = None
    source: Any = None
    # of calls that another server has run
    url: Any = None
    page_age: Any = None
    server_name: Any = None
    mcp_server_name: Any = None
    error_code: Any = None
    error_message: Any = None
    stdout: Any = None
    stderr: Any = None
    return_code: Any = None
    is_file_update: Any = None
    lines: Any = None
    tool_references: Any = None
    tabs: Any = None
    state_changes: Any = None


class InputMessage(msgspec.Struct):
    """One turn. If the last is the assistant's, the answer continues it."""

    OTHERS: ClassVar = frozenset({"id", "clear_at"})
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[MessageBlock]
