"""Calls of tools that another server has run, such as web searches, in a conversation that began there.

A model here can neither make such calls nor read all that they returned. `--foreign-tools` says whether each becomes a
line of text in the model's turn, with what can be read of it, or is refused. An agent sends the whole conversation each
time. If one such call were refused, the conversation would be at its end (decision 0139).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

import msgspec

from tailrace.api.schema.message_blocks import InputMessage, MessageBlock
from tailrace.api.schema.response_items import ForeignItem, InputItem
from tailrace.errors import ParameterError

FIELDS = ("messages", "input", "items")  # which have the turns of a body
ITEMS = frozenset(get_args(ForeignItem))
BLOCKS = frozenset(
    {"server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result"}
    | {"bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result"}
    | {"mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "advisor_tool_result", "compaction"}
)  # types of blocks in /v1/messages
READABLE = ("search_result", "browser_state")  # types of blocks whose contents are all text
# names of what no model can read, or what says nothing to it
OPAQUE = frozenset(
    {"id", "call_id", "tool_use_id", "file_id", "container_id", "approval_request_id", "fingerprint", "execution"}
    | {"encrypted_content", "encrypted_stdout", "encrypted_index", "pending_safety_checks", "tools", "annotations"}
    | {"acknowledged_safety_checks", "cache_control", "citations"}
)
WHOLE = ("input", "arguments")  # what the model has written for a call: the names in it are those of the tool
BINARY = re.compile(r"data:[^,\s]*;base64,")  # of a URL
DONE = ("status", "completed")
EMPTY: tuple[Any, ...] = (None, "", [], {})
WARNING = "written as text, because no such tools are served here: {}"


def list_foreign_calls(ask: Any, policy: Literal["drop", "refuse"]) -> list[str]:
    """Return the types of the calls in a body that another server has run.

    Raises:
        ParameterError: there is one, and the policy refuses it.
    """
    kinds: dict[str, None] = {}
    for place, kind in find_foreign_calls(ask):
        if policy == "refuse":
            raise ParameterError(f"{place}.type: this server refuses calls of tools like {kind}", f"{place}.type")
        kinds[kind] = None
    return [*kinds]


def find_foreign_calls(ask: Any) -> Iterator[tuple[str, str]]:
    """Yield the place and the type of each call in a body that another server has run."""
    for field in FIELDS:
        turns = getattr(ask, field, None)
        for i, turn in enumerate(turns if isinstance(turns, list) else ()):
            if isinstance(turn, InputItem) and is_foreign_call(turn):
                yield f"{field}[{i}]", str(turn.type)
            elif isinstance(turn, InputMessage) and turn.role == "assistant" and isinstance(turn.content, list):
                for j, block in enumerate(turn.content):
                    if is_foreign_call(block):
                        yield f"{field}[{i}].content[{j}]", block.type


def is_foreign_call(part: InputItem | MessageBlock) -> bool:
    """Return whether another server has run this call, or it is the result of such a call."""
    return part.type in (ITEMS if isinstance(part, InputItem) else BLOCKS)


def is_readable(block: MessageBlock) -> bool:
    """Return whether a block of the user, or of a result, is no text, but has nothing that a model cannot read."""
    source = block.source
    of_text = block.type == "document" and isinstance(source, dict) and source.get("type") == "text"
    return of_text or block.type in READABLE


def describe_part(part: InputItem | MessageBlock, name: str) -> str:
    """Return a part of a conversation as one line: its type, and as JSON what can be read of it.

    Raises:
        ParameterError: it is nested too deeply. name: its place.
    """
    try:
        fields = msgspec.to_builtins(part)
        kind = fields.pop("type")
        if kind == "image_generation_call":
            fields.pop("result")  # the image
        shown = drop_opaque(fields)
        return f"[{kind}: {msgspec.json.encode(shown).decode()}]" if shown else f"[{kind}]"
    except RecursionError:
        raise ParameterError(f"{name}: it is nested too deeply", name) from None


def drop_opaque(value: Any) -> Any:
    """Return what can be read of a value; an empty value if there is nothing."""
    if isinstance(value, dict):
        binary = value.get("type") == "base64"
        named = [(name, inner) for name, inner in value.items() if name not in OPAQUE and (name, inner) != DONE]
        shown = {name: inner if name in WHOLE else drop_opaque(inner) for name, inner in named}
        return {name: inner for name, inner in shown.items() if inner not in EMPTY and not (binary and name == "data")}
    if isinstance(value, list):
        return [inner for part in value if (inner := drop_opaque(part)) not in EMPTY]
    return None if isinstance(value, str) and BINARY.match(value) else value
