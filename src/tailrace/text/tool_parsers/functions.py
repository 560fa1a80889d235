"""The functions that a request's tools declare, each with the schema of its arguments. Knows no format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.resolve import all_with_null
from tailrace.text.tool_parsers.schemas import check_form

NAME = re.compile(r"[\w.:/@$-]+", re.ASCII)  # what every parser reads as one word
MAX_NAME = 256  # characters; OpenAI takes 64
# keywords that say more about an object than its properties: with any of these, undeclared arguments may be intended
OPEN = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "propertyNames", "unevaluatedProperties"}
)


class Function(NamedTuple):
    """One function. parameters: the JSON schema of its arguments object. strict: the arguments must always fit the
    schema."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def functions_of(tools: list[dict[str, Any]] | None) -> list[Function]:
    """The functions of tools that passed `check_tools`.

    Raises:
        ParameterError: a schema can't be served; the message names tools[i].
    """
    found: list[Function] = []
    for i, tool in enumerate(tools or ()):
        nested = "function" in tool
        function = tool["function"] if nested else tool
        place = f"tools[{i}]{'.function' if nested else ''}.parameters"
        strict = function.get("strict", tool.get("strict")) is True
        found.append(Function(function["name"], closed(function.get("parameters"), place), strict))
    return found


def check_tools(tools: list[dict[str, Any]] | None, nested: bool) -> None:
    """Check the tools of a request, as all endpoints do. nested: in the shape of Chat, else in that of Responses.

    Raises:
        ParameterError: a tool is no function, its name is invalid or not unique, or its parameters are no object. The
            message names the place.
    """
    names: set[str] = set()
    for i, tool in enumerate(tools or ()):
        place = f"tools[{i}]"
        if tool.get("type", "function") != "function" or (nested and "type" not in tool and "function" not in tool):
            raise wrong(f"{place}.type", '"function"', tool.get("type"))
        function = tool.get("function") if nested else tool
        place += ".function" if nested else ""
        if not isinstance(function, dict):
            raise wrong(place, "an object", function)
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or len(name) > MAX_NAME or not NAME.fullmatch(name):
            raise wrong(f"{place}.name", f"1 to {MAX_NAME} letters, digits or _ . : / @ $ -", name)
        if name in names:
            raise ParameterError(f"{place}.name: there is a function {name!r:.100} already", f"{place}.name")
        names.add(name)
        if parameters is not None and not isinstance(parameters, dict):
            raise wrong(f"{place}.parameters", "a JSON schema of an object", parameters)
        for key, kind in (("description", str), ("strict", bool)):
            if not isinstance(function.get(key), kind | None):
                raise wrong(f"{place}.{key}", "a string" if kind is str else "true or false", function[key])


def wrong(place: str, wanted: str, got: Any) -> ParameterError:
    """The error for a wrong value at a place."""
    return ParameterError(f"{place} must be {wanted}, got {got!r:.100}", place)


def closed(schema: Any, field: str) -> dict[str, Any]:
    """The schema of arguments that is enforced: an object without undeclared properties, unless the schema allows some.

    Raises:
        ParameterError: it is no schema of an object.
    """
    if schema is None:
        schema = {}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ParameterError(f'{field} must be a JSON schema of type "object", got {schema!r:.100}', "tools")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not isinstance(schema.get("required", []), list):
        raise ParameterError(f"{field}: properties must be an object, and required a list", "tools")
    check_form(schema, field)
    schema = all_with_null(schema)
    properties = schema.get("properties", {})
    whole = {"type": "object"} | schema | {"properties": properties}
    if OPEN & schema.keys():
        return whole
    more = schema.get("additionalProperties", True)
    undeclared = [name for name in schema.get("required", []) if name not in properties]
    if undeclared and more is False:
        raise ParameterError(f"{field}: {undeclared[0]!r:.100} is required, and not among the properties", "tools")
    declared = properties | {name: {} if more is True else more for name in undeclared}
    return {"additionalProperties": False} | whole | {"properties": declared}
