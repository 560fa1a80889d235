"""Tools of /v1/responses that OpenAI has defined and that clients run: `local_shell`, `shell` and `apply_patch`. They
are functions for the model, and items of their own types for the client (decision 0134)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from tailrace.api.anthropic_tools import TEXT, describe, make_parameters
from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.functions import make_value_error

TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
COUNT = {"type": "integer", "minimum": 1}
TIMEOUT = describe(COUNT, "Maximum duration in milliseconds.")
DIFF = (
    "For create_file: the file's lines, each after a +. For update_file: hunks. A hunk begins with a line of @@ and "
    "the name of its class or function. Then its lines follow: after a space if they stay, after - if they are "
    "removed, after + if they are added. For delete_file: empty."
)


class LocalCommand(msgspec.Struct, omit_defaults=True):
    """What `local_shell` runs."""

    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class Commands(msgspec.Struct, omit_defaults=True):
    """What `shell` runs."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class Patch(msgspec.Struct, omit_defaults=True):
    """What `apply_patch` does with a file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str = ""


class ItemTool(NamedTuple):
    """A tool with items of its own.

    - arguments: of its function. field: of the item that has them.
    - complete: the arguments → the value of this field.
    - prefix: of the ids of its calls, and of its outputs with an "o".
    """

    description: str
    parameters: dict[str, Any]
    arguments: type[LocalCommand | Commands | Patch]
    field: Literal["action", "operation"]
    complete: Callable[[dict[str, Any]], dict[str, Any]]
    prefix: str


def complete_patch(operation: dict[str, Any]) -> dict[str, Any]:
    """Return an operation with a diff, or without one if it deletes a file."""
    wanted = {} if operation["type"] == "delete_file" else {"diff": operation.get("diff", "")}
    return {name: value for name, value in operation.items() if name != "diff"} | wanted


# type of a tool → the tool; also the name of its function
DEFINED = {
    "local_shell": ItemTool(
        "Run a command on the user's computer.",
        make_parameters(
            ("command",),
            command=describe(TEXTS, "The program and its arguments."),
            working_directory=TEXT,
            env=describe({"type": "object", "additionalProperties": TEXT}, "Variables of the environment."),
            timeout_ms=TIMEOUT,
            user=describe(TEXT, "The user who runs the command."),
        ),
        LocalCommand,
        "action",
        lambda action: {"type": "exec", "env": {}} | action,
        "lsh",
    ),
    "shell": ItemTool(
        "Run commands in a shell on the user's computer.",
        make_parameters(
            ("commands",),
            commands=describe(TEXTS, "Commands of the shell. They may run at the same time."),
            timeout_ms=TIMEOUT,
            max_output_length=describe(COUNT, "Maximum number of characters of the output."),
        ),
        Commands,
        "action",
        lambda action: {"timeout_ms": None, "max_output_length": None} | action,
        "sh",
    ),
    "apply_patch": ItemTool(
        "Create, change or delete a file.",
        make_parameters(
            ("type", "path", "diff"),
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path=describe(TEXT, "Path of the file."),
            diff=describe(TEXT, DIFF),
        ),
        Patch,
        "operation",
        complete_patch,
        "apc",
    ),
}
CALL, OUTPUT = "_call", "_call_output"  # behind the type of the tool: the types of its items
CALLS = {kind + CALL: kind for kind in DEFINED}
OUTPUTS = {kind + OUTPUT: kind for kind in DEFINED}


def has_items(kind: Any) -> bool:
    """Return whether calls of tools of this type are items of their own. kind: as a request has it."""
    return isinstance(kind, str) and kind in DEFINED


def runs_in_container(tool: Any) -> bool:
    """Return whether a tool is OpenAI's shell in a container, which its server runs."""
    environment = tool.get("environment") if isinstance(tool, dict) else None
    return isinstance(environment, dict) and str(environment.get("type")).startswith("container")


def make_item_function(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a tool of one of the types in DEFINED as a function. Its calls must fit it, or there is no item for them.

    Raises:
        ParameterError: the environment of a shell is malformed, or is a container of OpenAI.
    """
    kind, environment = tool["type"], tool.get("environment")
    description = DEFINED[kind].description
    if environment is not None:
        if not isinstance(environment, dict) or environment.get("type") != "local":
            raise make_value_error(f"{place}.environment", '{"type": "local"}: the client runs commands', environment)
        description += describe_skills(environment.get("skills"), f"{place}.environment.skills")
    parameters = DEFINED[kind].parameters
    return {"type": "function", "name": kind, "description": description, "strict": True, "parameters": parameters}


def describe_skills(skills: Any, place: str) -> str:
    """Return the skills of a local shell as text for the model."""
    if skills is None or skills == []:
        return ""
    names = ("name", "description", "path")
    if not isinstance(skills, list) or not all(
        isinstance(skill, dict) and all(isinstance(skill.get(name), str) for name in names) for skill in skills
    ):
        raise make_value_error(place, "a list of skills, each with name, description and path", skills)
    lines = [f"\n- {skill['name']} ({skill['path']}): {skill['description']}" for skill in skills]
    return "\nFolders with instructions for some tasks (SKILL.md):" + "".join(lines)


def read_arguments(kind: str, arguments: str) -> dict[str, Any] | None:
    """Return the field of a call's item that has these arguments, or None if they do not fit the tool."""
    tool = DEFINED[kind]
    try:
        return tool.complete(msgspec.to_builtins(msgspec.json.decode(arguments, type=tool.arguments)))
    except msgspec.MsgspecError:
        return None


def write_arguments(kind: str, given: Any, place: str) -> str:
    """Return the arguments of an earlier call. given: the field of its item.

    Raises:
        ParameterError: it is missing or malformed.
    """
    tool = DEFINED[kind]
    place = f"{place}.{tool.field}"
    if given is None:
        raise ParameterError(f"{place}: required, but missing", place)
    try:
        return msgspec.json.encode(msgspec.convert(msgspec.to_builtins(given), tool.arguments)).decode()
    except msgspec.ValidationError as error:
        raise ParameterError(f"{place}: {error}", place) from None
