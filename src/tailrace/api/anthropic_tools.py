"""The tools of /v1/messages as functions. Some are defined by Anthropic and run by clients: `bash`, `text_editor` and
`memory`.

A request names such a tool by its type alone. Clients expect its input to be the published one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tailrace.api.schema.messages import InputTool
from tailrace.errors import ParameterError, format_json
from tailrace.text.tool_parsers.functions import make_value_error

TEXT = {"type": "string"}


class DefinedTool(NamedTuple):
    """A tool as a function."""

    name: str
    description: str | None
    parameters: dict[str, Any]


def describe(schema: dict[str, Any], description: str) -> dict[str, Any]:
    """Return a schema with a description."""
    return schema | {"description": description}


def make_parameters(required: Sequence[str], **properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments."""
    return {"type": "object", "properties": properties, "required": [*required]}


REPLACEMENT, INSERTED = "For str_replace: the text that replaces old_str.", "For insert: the text to insert."
# parameters of the editor and of the memory
EDITED = {
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 2,
        "description": "For view: the first and the last line to show, counted from 1. -1 is the end of the file.",
    },
    "file_text": describe(TEXT, "For create: the content of the file."),
    "old_str": describe(TEXT, "For str_replace: the text to replace. It must be in the file exactly once."),
    "insert_line": {
        "type": "integer",
        "minimum": 0,
        "description": "For insert: the line after which the text is inserted. 0 is the beginning of the file.",
    },
}


def make_editor(name: str, inserted: str, *commands: str) -> DefinedTool:
    """Return the text editor. inserted: the parameter with the text of `insert`."""
    texts = (
        {"new_str": f"{REPLACEMENT} {INSERTED}"}
        if inserted == "new_str"
        else {"new_str": REPLACEMENT, inserted: INSERTED}
    )
    parameters = make_parameters(
        ("command", "path"),
        command={"type": "string", "enum": ["view", "create", "str_replace", "insert", *commands]},
        path=describe(TEXT, "Absolute path of the file or folder."),
        **EDITED,
        **{name: describe(TEXT, words) for name, words in texts.items()},
    )
    return DefinedTool(name, "View, create and change text files. view also lists a folder.", parameters)


BASH = DefinedTool(
    "bash",
    "Run a command in a bash shell. The shell keeps its state from one call to the next.",
    make_parameters(
        ("command",),
        command=describe(TEXT, "The command to run."),
        restart=describe({"type": "boolean"}, "true restarts the shell. Otherwise leave it out."),
    ),
)
MEMORY = DefinedTool(
    "memory",
    "Store and read what should be known in later conversations, as files in the folder /memories.",
    make_parameters(
        ("command",),
        command={"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        path=describe(TEXT, "Path of the file or folder below /memories, for all commands but rename."),
        **EDITED,
        new_str=describe(TEXT, REPLACEMENT),
        insert_text=describe(TEXT, INSERTED),
        old_path=describe(TEXT, "For rename: the present path."),
        new_path=describe(TEXT, "For rename: the new path."),
    ),
)
OLD_EDITOR = make_editor("str_replace_editor", "new_str", "undo_edit")
EDITOR = make_editor("str_replace_based_edit_tool", "insert_text")
DEFINED = {
    "bash_20241022": BASH,
    "bash_20250124": BASH,
    "text_editor_20241022": OLD_EDITOR,
    "text_editor_20250124": OLD_EDITOR,
    "text_editor_20250429": EDITOR,
    "text_editor_20250728": EDITOR,
    "memory_20250818": MEMORY,
}


def make_function(tool: InputTool, place: str) -> dict[str, Any]:
    """Return a tool as a function in the form of Responses.

    Raises:
        ParameterError: naming the field.
    """
    defined = make_defined_tool(tool, place)
    found: dict[str, Any] = {"type": "function", "name": defined.name}
    if (description := tool.description or defined.description) is not None:
        found["description"] = description
    found["parameters"] = defined.parameters
    if tool.strict is not None:
        found["strict"] = tool.strict
    return found | ({"input_examples": tool.input_examples} if tool.input_examples else {})


def make_defined_tool(tool: InputTool, place: str) -> DefinedTool:
    """Return a tool as Anthropic, or the request, defines it.

    Raises:
        ParameterError: the type is unknown. A custom tool lacks a field, or another one has a field that Anthropic
            defines.
    """
    if tool.type in (None, "custom"):
        for field in ("name", "input_schema"):
            if getattr(tool, field) is None:
                raise ParameterError(f"{place}.{field}: required, but missing", f"{place}.{field}")
        return DefinedTool(str(tool.name), tool.description, tool.input_schema or {})
    if (defined := DEFINED.get(tool.type)) is None:
        known = ", ".join(DEFINED)
        raise make_value_error(f"{place}.type", f'"custom" or another tool that the client runs ({known})', tool.type)
    if tool.name not in (None, defined.name):
        raise make_value_error(f"{place}.name", format_json(defined.name), tool.name)
    if tool.input_schema is not None:
        raise ParameterError(f"{place}.input_schema: Anthropic defines it; leave it out", f"{place}.input_schema")
    return defined
