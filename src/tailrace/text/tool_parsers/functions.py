"""The functions that a request's tools declare, each with the schema of its arguments. Knows no format."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tailrace.base.schema_branches import join_branches
from tailrace.errors import ParameterError, format_json
from tailrace.text.tool_parsers.dialects import standard_schema
from tailrace.text.tool_parsers.lark_source import LarkGrammar
from tailrace.text.tool_parsers.resolve import JOINED, named_kinds
from tailrace.text.tool_parsers.schemas import check_depth, check_form

NAME = re.compile(r"[\w.:/@$-]+", re.ASCII)  # what every parser reads as one word
LARK_KEY = "x-lark"  # in the schema of a text: the function whose Lark grammar holds for the text
NO_GRAMMARS: Mapping[str, LarkGrammar | None] = MappingProxyType({})
MAX_NAME = 256  # characters; OpenAI takes 64
# keywords that say more about an object than its properties: with any of these, undeclared arguments may be intended
OPEN = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "propertyNames", "unevaluatedProperties"}
)


class Function(NamedTuple):
    """A function that a request declares.

    - `parameters`: the JSON schema of its arguments object.
    - `strict`: the arguments must always fit the schema.
    - `loose`: calls may have any arguments, and the schema is not enforced.
    - `lark`: the Lark grammar of the single argument, which is a text (a custom tool).
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    loose: bool = False
    lark: LarkGrammar | None = None


def functions_of(
    tools: list[dict[str, Any]] | None,
    names: Collection[str] | None = None,
    forced: bool = True,
    grammars: Mapping[str, LarkGrammar | None] = NO_GRAMMARS,
) -> list[Function]:
    """Return the functions of tools that passed `check_tools`.

    Args:
        names: the names of the selected functions. None selects all.
        forced: enforce all functions. Otherwise enforce strict functions only.
        grammars: name of a function → the Lark grammar of its single argument.

    Raises:
        ParameterError: a schema can't be enforced. The message names tools[i].
    """
    found: list[Function] = []
    for i, tool in enumerate(tools or ()):
        nested = "function" in tool
        function = tool["function"] if nested else tool
        if names is not None and function["name"] not in names:
            continue
        place = f"tools[{i}]{'.function' if nested else ''}.parameters ({function['name']})"
        strict = function.get("strict", tool.get("strict")) is True
        enforced, given = forced or strict, function.get("parameters")
        parameters = close_schema(given, place) if enforced else given or {}
        lark = grammars.get(function["name"])
        if lark and enforced:
            parameters = mark_text(parameters, function["name"])
        found.append(Function(function["name"], parameters, strict, not enforced, lark if enforced else None))
    return found


def mark_text(parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a custom tool's single argument with the function's name at the argument, so that no other
    text is taken for it."""
    [(key, schema)] = parameters["properties"].items()
    return {**parameters, "properties": {key: schema | {LARK_KEY: name}}}


def check_tools(tools: list[dict[str, Any]] | None, nested: bool) -> None:
    """Check the tools of a request, as all endpoints do. nested: in the shape of Chat, else in that of Responses.

    Raises:
        ParameterError: a tool is no function, its name is invalid or not unique, or its parameters are no object. The
            message names the place.
    """
    names: set[str] = set()
    for i, tool in enumerate(tools or ()):
        place, kind = f"tools[{i}]", "custom" if nested and tool.get("type") == "custom" else "function"
        if tool.get("type", "function") != kind or (nested and "type" not in tool and "function" not in tool):
            raise make_value_error(
                f"{place}.type", '"function" or "custom"' if nested else '"function"', tool.get("type")
            )
        function = tool.get(kind) if nested else tool
        place += f".{kind}" if nested else ""
        if not isinstance(function, dict):
            raise make_value_error(place, "an object", function)
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or len(name) > MAX_NAME or not NAME.fullmatch(name):
            raise make_value_error(f"{place}.name", f"1 to {MAX_NAME} letters, digits or _ . : / @ $ -", name)
        if name in names:
            raise ParameterError(f"{place}.name: there is a function {format_json(name)} already", f"{place}.name")
        names.add(name)
        if parameters is not None and not isinstance(parameters, dict):
            raise make_value_error(f"{place}.parameters", "a JSON schema of an object", parameters)
        for key, kind in (("description", str), ("strict", bool)):
            if not isinstance(function.get(key), kind | None):
                raise make_value_error(f"{place}.{key}", "a string" if kind is str else "true or false", function[key])


def make_value_error(place: str, wanted: str, got: Any) -> ParameterError:
    """Return the error for a wrong value at a place."""
    return ParameterError(f"{place} must be {wanted}, got {format_json(got)}", place)


def close_schema(schema: Any, field: str) -> dict[str, Any]:
    """Return the schema of arguments that is enforced.

    It describes an object without undeclared properties, unless the schema allows some.

    Raises:
        ParameterError: the schema does not describe an object.
    """
    if schema is None:
        schema = {}
    if not isinstance(schema, dict):
        raise no_object(schema, field)
    check_depth(schema, field, "tools")
    schema = {key: one for key, one in standard_schema(schema).items() if one is not None or key not in JOINED}
    if "object" not in (named_kinds(schema) or ("object",)):
        raise no_object(schema, field)
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not isinstance(schema.get("required", []), list):
        raise ParameterError(f"{field}: properties must be an object, and required a list", "tools")
    check_form(schema, field)
    whole = {"type": "object"}  # never null, also if the schema allows that
    schema = whole | join_branches(schema) | whole
    if OPEN & schema.keys():
        return schema
    properties = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    undeclared = [name for name in schema.get("required", []) if name not in properties]
    if undeclared and more is False:
        raise ParameterError(
            f"{field}: {format_json(undeclared[0])} is required, and not among the properties", "tools"
        )
    declared = properties | {name: {} if more is True else more for name in undeclared}
    return {"additionalProperties": False} | schema | {"properties": declared}


def no_object(schema: Any, field: str) -> ParameterError:
    """Return the error for arguments that are no object."""
    return ParameterError(f'{field} must be a JSON schema of type "object", got {format_json(schema)}', "tools")
