"""The tools of /v1/responses as functions, and the calls of these functions as the items that the client expects.

A model knows functions alone. A tool in a namespace is a function whose name begins with the namespace. A custom tool
is a function with one text (decision 0100).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import ParameterError, format_json
from tailrace.text.tool_parsers.functions import make_value_error

JOINT = "__"  # between the names of a namespace and of its tool
INPUT = "input"  # the argument of a custom tool
OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])")
PARTIAL = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
HIGH, LOW = re.compile(r"\\u[dD][89abAB]..\Z"), re.compile(r"\\u[dD][c-fC-F]..")


class Offered(NamedTuple):
    """A function as the client offered it. custom: its argument is one text."""

    name: str
    namespace: str = ""
    custom: bool = False


class FlatTools(NamedTuple):
    """Tools as functions.

    - functions: in the shape of Responses. None: the request has no tools.
    - places: the place of each function in the request.
    - offered: name of a function → how the client offered it. Plain functions are left out.
    """

    functions: list[dict[str, Any]] | None
    places: list[str]
    offered: dict[str, Offered]


def flatten_tools(tools: list[dict[str, Any]] | None) -> FlatTools:
    """Return the tools as functions.

    Raises:
        ParameterError: a namespace or a custom tool is malformed, or has a grammar that can't be enforced.
    """
    if tools is None:
        return FlatTools(None, [], {})
    flat = FlatTools([], [], {})
    for i, tool in enumerate(tools):
        place = f"tools[{i}]"
        if tool.get("type") != "namespace":
            add_tool(flat, tool, place, {})
            continue
        inner = tool.get("tools")
        for key in ("name", "description"):
            if not isinstance(tool.get(key), str | None if key == "description" else str):
                raise make_value_error(f"{place}.{key}", "a string", tool.get(key))
        if not isinstance(inner, list) or not inner or not all(isinstance(one, dict) for one in inner):
            raise make_value_error(f"{place}.tools", "a list of tools", inner)
        for j, one in enumerate(inner):
            add_tool(flat, one, f"{place}.tools[{j}]", tool)
    return flat


def add_tool(flat: FlatTools, tool: dict[str, Any], place: str, namespace: Mapping[str, Any]) -> None:
    """Append a tool to the functions. namespace: the tool that it stands in; empty without one."""
    name, kind = tool.get("name"), tool.get("type", "function")
    custom = kind == "custom"
    if namespace and kind not in ("function", "custom"):
        raise make_value_error(f"{place}.type", '"function" or "custom"', kind)
    if (custom or namespace) and not isinstance(name, str):
        raise make_value_error(f"{place}.name", "a string", name)
    function = make_custom_function(tool, place) if custom else dict(tool)
    if namespace:
        function["name"] = f"{namespace['name']}{JOINT}{name}"
        described = [text for text in (namespace.get("description"), function.get("description")) if text]
        if all(isinstance(text, str) for text in described) and described:
            function["description"] = "\n\n".join(described)
    if custom or namespace:
        flat.offered[function["name"]] = Offered(str(name), namespace.get("name", ""), custom)
    assert flat.functions is not None
    flat.functions.append(function)
    flat.places.append(place)


def make_custom_function(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a custom tool as a function with one text. A regex becomes the pattern of this text.

    Raises:
        ParameterError: the format is malformed, or a Lark grammar: it would have to hold within a JSON string.
    """
    text: dict[str, Any] = {"type": "string"}
    function: dict[str, Any] = {"type": "function", "name": tool.get("name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    match tool.get("format"):
        case None | {"type": "text"}:
            pass
        case {"type": "grammar", "syntax": "regex", "definition": str(regex)}:
            text["pattern"] = f"^(?:{regex})$"
            function["strict"] = True
        case {"type": "grammar", "syntax": "lark"}:
            raise ParameterError(
                f"{place}.format.syntax: a Lark grammar can't be enforced within a call; use a regex, or the format "
                "text with the grammar in the description",
                f"{place}.format.syntax",
            )
        case other:
            raise make_value_error(
                f"{place}.format",
                '{"type": "text"} or {"type": "grammar", "syntax": "regex", "definition": string}',
                other,
            )
    return function | {"parameters": {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}}


def rename_choice(choice: Any, offered: Mapping[str, Offered]) -> Any:
    """Return a tool_choice by the names of functions.

    Raises:
        ParameterError: it names an unknown custom tool.
    """
    if not isinstance(choice, dict):
        return choice
    if isinstance(choice.get("tools"), list):
        return choice | {"tools": [rename_choice(tool, offered) for tool in choice["tools"]]}
    if choice.get("type") not in ("custom", "function") or not isinstance(choice.get("name"), str):
        return choice
    custom, name = choice["type"] == "custom", choice["name"]
    wanted = Offered(name, choice.get("namespace") or "", custom)
    found = next((own for own, one in offered.items() if one == wanted), None)
    if found is None and custom:
        raise ParameterError(f"tool_choice: there is no custom tool {format_json(name)}", "tool_choice")
    return choice if found is None else {"type": "function", "name": found}


def make_function_name(name: str, namespace: str | None) -> str:
    """Return the name of the function that stands for a tool of a namespace."""
    return f"{namespace}{JOINT}{name}" if namespace else name


class CustomInput:
    """The text of a custom tool, read from the arguments of its function as they come.

    Arguments without this text are the input themselves.
    """

    def __init__(self) -> None:
        self._unread, self._begun, self._over = "", False, False

    def feed(self, arguments: str) -> str:
        """Return the text that further arguments give."""
        if self._over:
            return ""
        self._unread += arguments
        if not self._begun:
            if (opening := OPENING.match(self._unread)) is None:
                return ""
            self._begun, self._unread = True, self._unread[opening.end() :]
        return self._read()

    def end(self) -> str:
        """Return what is left of the text after the last argument."""
        return "" if self._begun else self._unread

    def _read(self) -> str:
        """Decode up to the end of the text, or to what may be a part of an escape."""
        text, at = self._unread, 0
        while at < len(text) and text[at] != '"':
            if text[at] != "\\":
                at += 1
                continue
            if (escape := ESCAPE.match(text, at)) is None:
                if PARTIAL.match(text, at):
                    break
                at += 1  # It begins no escape.
                continue
            if HIGH.match(escape[0]):  # The other half of the pair belongs to the same character.
                rest = text[escape.end() : escape.end() + 6]
                if len(rest) < 6 and "\\u".startswith(rest[:2]) and '"' not in rest:
                    break
                at = escape.end() + (6 if LOW.match(rest) else 0)
                continue
            at = escape.end()
        self._over = at < len(text) and text[at] == '"'
        found, self._unread = text[:at], text[at:]
        return ESCAPE.sub(decode_escape, found).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode_escape(escape: re.Match[str]) -> str:
    """Return the character of an escape. An escape that JSON does not know stays as it is."""
    kind, digits = escape[0][1], escape[0][2:]
    return chr(int(digits, 16)) if kind == "u" else ESCAPES.get(kind, escape[0])


def write_custom_arguments(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)
