"""The tools of /v1/responses as functions, and the calls of these functions as the items that the client expects.

A model knows functions alone. A tool in a namespace is a function whose name begins with the namespace. A custom tool
is a function with one text (decision 0100). A shell and the like are functions of the name of their type (decision
0134).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.api import item_tools
from tailrace.api.custom_tools import CustomFunction, make_custom_function
from tailrace.api.foreign_tools import check_callers
from tailrace.errors import ParameterError, format_json
from tailrace.text.tool_parsers.functions import make_value_error
from tailrace.text.tool_parsers.lark_source import LarkGrammar

KINDS = ("function", "custom", "namespace", *item_tools.DEFINED)  # types of tools
JOINT = "__"  # between the names of a namespace and of its tool


class Offered(NamedTuple):
    """A function as the client offered it.

    - custom: its argument is one text. lark: the Lark grammar of this text.
    - item: its calls have items of their own: the type of the tool (item_tools.py), else "".
    """

    name: str
    namespace: str = ""
    custom: bool = False
    lark: LarkGrammar | None = None
    item: str = ""


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
            raise make_value_error(f"{place}.tools", "a list with a tool or more", inner)
        for j, one in enumerate(inner):
            add_tool(flat, one, f"{place}.tools[{j}]", tool)
    return flat


def add_tool(flat: FlatTools, tool: dict[str, Any], place: str, namespace: Mapping[str, Any]) -> None:
    """Append a tool to the functions. namespace: the tool that it stands in; empty without one."""
    name, kind = tool.get("name"), tool.get("type", "function")
    custom = kind == "custom"
    if item_tools.has_items(kind) and not namespace:
        add_function(flat, item_tools.make_item_function(tool, place), place, Offered(kind, item=kind))
        return
    if not namespace and kind not in KINDS:
        raise make_value_error(f"{place}.type", " or ".join(map(format_json, KINDS)), kind)
    if namespace and kind not in ("function", "custom"):
        raise make_value_error(f"{place}.type", '"function" or "custom"', kind)
    if namespace:
        check_callers(tool, place)
    if (custom or namespace) and not isinstance(name, str):
        raise make_value_error(f"{place}.name", "a string", name)
    function, lark = make_custom_function(tool, place) if custom else CustomFunction(dict(tool))
    if namespace:
        function["name"] = f"{namespace['name']}{JOINT}{name}"
        described = [text for text in (namespace.get("description"), function.get("description")) if text]
        if all(isinstance(text, str) for text in described) and described:
            function["description"] = "\n\n".join(described)
    offered = Offered(str(name), namespace.get("name", ""), custom, lark) if custom or namespace else None
    add_function(flat, function, place, offered)


def add_function(flat: FlatTools, function: dict[str, Any], place: str, offered: Offered | None) -> None:
    """Append a function. offered: None for a plain one."""
    if offered is not None:
        flat.offered[function["name"]] = offered
    assert flat.functions is not None
    flat.functions.append(function)
    flat.places.append(place)


def rename_choice(choice: Any, offered: Mapping[str, Offered]) -> Any:
    """Return a tool_choice by the names of functions.

    Raises:
        ParameterError: it names an unknown tool.
    """
    if not isinstance(choice, dict):
        return choice
    if isinstance(choice.get("tools"), list):
        return choice | {"tools": [rename_choice(tool, offered) for tool in choice["tools"]]}
    if item_tools.has_items(choice.get("type")):
        found = offered.get(choice["type"])
        if found is None or not found.item:
            raise ParameterError(f"tool_choice: there is no tool of type {format_json(choice['type'])}", "tool_choice")
        return {"type": "function", "name": found.name}
    if choice.get("type") not in ("custom", "function") or not isinstance(choice.get("name"), str):
        return choice
    custom, name = choice["type"] == "custom", choice["name"]
    wanted = (name, choice.get("namespace") or "", custom)
    found = next((own for own, one in offered.items() if (one.name, one.namespace, one.custom) == wanted), None)
    if found is None and custom:
        raise ParameterError(f"tool_choice: there is no custom tool {format_json(name)}", "tool_choice")
    return choice if found is None else {"type": "function", "name": found}


def make_function_name(name: str, namespace: str | None) -> str:
    """Return the name of the function that stands for a tool of a namespace."""
    return f"{namespace}{JOINT}{name}" if namespace else name
