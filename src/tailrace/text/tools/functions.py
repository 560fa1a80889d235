"""What a request's tools declare: functions, each with the schema of its arguments. Knows no format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import ParameterError
from tailrace.text.tools.schemas import check_form

NAME = re.compile(r"[\w.:/@$-]+", re.ASCII)  # what every parser reads as one word
# keywords that say more of an object than its properties: where these stand, undeclared arguments may be meant
OPEN = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "propertyNames", "unevaluatedProperties"})  # fmt: skip


class Function(NamedTuple):
    """One function. parameters: the JSON schema of the object of its arguments. strict: they must fit it whenever it is called."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def functions_of(tools: list[dict[str, Any]] | None) -> list[Function]:
    """The functions, in Chat's shape or, one level flatter, in that of Responses.

    Raises:
        ParameterError: a tool that is no function, or a name or schema that can't be served; it names tools[i].
    """
    found: list[Function] = []
    names: set[str] = set()
    for i, tool in enumerate(tools or ()):
        function = tool.get("function", tool)
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise ParameterError(f"tools[{i}] must be a function, got {tool.get('type')!r:.100}", "tools")
        name = function.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ParameterError(
                f"tools[{i}]: a function's name must be letters, digits or one of _ . : / @ $ -, got {name!r:.100}",
                "tools",
            )
        if name in names:
            raise ParameterError(f"tools[{i}]: there is a function {name!r:.100} already", "tools")
        names.add(name)
        strict = function.get("strict", tool.get("strict")) is True
        found.append(Function(name, closed(function.get("parameters"), f"tools[{i}].parameters"), strict))
    return found


def closed(schema: Any, field: str) -> dict[str, Any]:
    """A schema of arguments as it is enforced: an object without undeclared properties, unless it says that it may have some.

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
    whole = {"type": "object", "properties": properties} | schema
    return (
        whole if "additionalProperties" in schema or OPEN & schema.keys() else whole | {"additionalProperties": False}
    )
