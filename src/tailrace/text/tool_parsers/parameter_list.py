"""The parameters of a function, for formats that write each argument with its name: names, schemas, alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.base.json_schema import NOTES, SHARED, with_references_inside
from tailrace.base.schema_conflicts import property_of
from tailrace.errors import ParameterError, format_json
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.resolve import simplify_schema, with_listed_types

# Keywords of the arguments object that make parameters depend on each other. A list of separate parameters can't
# express these keywords.
TIES = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
    }
)
OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties", *SHARED})


class ParameterList(NamedTuple):
    """One alternative of a function's arguments.

    - `fields`: the name of each parameter, its schema as a separate document, and whether the parameter is required.
    - `free`: the schema of further parameters with any names. None forbids further parameters.
    """

    fields: tuple[tuple[str, dict[str, Any], bool], ...]
    free: dict[str, Any] | None


def parameter_lists(function: Function) -> list[ParameterList]:
    """Return the alternatives of a function's arguments. A loose function has one alternative, with any parameters.

    Raises:
        ParameterError: the schema makes parameters depend on each other.
    """
    if function.loose:
        return [ParameterList((), {})]
    whole = with_references_inside(function.parameters)
    schema = simplify_schema(whole, whole)
    if not isinstance(schema, Mapping):
        raise not_expressible(function.name, "such a schema")
    found = [parameter_list(function.name, one, schema) for one in iter_alternatives(function.name, schema)]
    if not found:
        raise not_expressible(function.name, "a schema that no arguments fit")
    return found


def parameter_list(name: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> ParameterList:
    """Return the parameters of one alternative. `root`: the schema that references point into."""
    if ties := TIES & schema.keys():
        raise not_expressible(name, sorted(ties)[0])
    shared = {key: root[key] for key in SHARED if key in root}
    required = schema.get("required", [])
    fields: list[tuple[str, dict[str, Any], bool]] = []
    for key in dict.fromkeys([*schema.get("properties", ()), *required]):
        plain = simplify_schema(property_of(schema, key), root)
        own = with_listed_types(plain)
        if own is not False:
            fields.append((key, shared | (own if isinstance(own, dict) else {}), key in required))
        elif plain is not False:
            raise not_expressible(f"{name}.{key}", "an enum of which no value fits")
        elif key in required:
            raise not_expressible(name, f"the parameter {format_json(key)}, of which no value fits,")
    more = schema.get("additionalProperties", False)
    free = simplify_schema({} if more is True else more, root)
    return ParameterList(tuple(fields), shared | free if isinstance(free, dict) else None)


def iter_alternatives(name: str, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of anyOf or oneOf, each merged with the schema's other keywords.

    Without anyOf and oneOf, yield the schema itself.
    """
    keys = [key for key in ("anyOf", "oneOf") if key in schema]
    if not keys:
        yield schema
        return
    choices = [choice if isinstance(choice, Mapping) else {} for choice in schema[keys[0]] if choice is not False]
    if len(keys) > 1 or any(choice.keys() - NOTES - OF_OBJECTS for choice in choices):
        raise not_expressible(name, " and ".join(keys))
    if any(choice.get("type", "object") != "object" for choice in choices):
        choices = [choice for choice in choices if "object" in str(choice.get("type", "object"))]
    if keys == ["oneOf"]:  # schema_branches replaces it by anyOf if possible
        raise not_expressible(name, "oneOf of which the same arguments may fit two")
    base = {key: value for key, value in schema.items() if key not in keys}
    for choice in choices:
        if (merged := merge_schemas(base, choice)) is not None:
            yield merged


def merge_schemas(base: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema of the objects that fit both schemas. Return None if no object fits both."""
    pair = base, choice
    names = dict.fromkeys([*base.get("properties", ()), *choice.get("properties", ())])
    required = list(dict.fromkeys([*base.get("required", ()), *choice.get("required", ())]))
    properties = {name: all_of([property_of(one, name) for one in pair]) for name in (*names, *required)}
    if any(properties[name] is False for name in required):
        return None
    more = [one["additionalProperties"] for one in pair if "additionalProperties" in one]
    free = {"additionalProperties": all_of(more)} if more else {}
    return {**base, **choice, "properties": properties, "required": required, **free}


def all_of(parts: list[Any]) -> Any:
    """Return a schema of the values that fit all parts."""
    if False in parts:
        return False
    different = [part for i, part in enumerate(parts) if part not in (True, {}) and part not in parts[:i]]
    return {"allOf": different} if len(different) > 1 else different[0] if different else True


def not_expressible(where: str, what: str) -> ParameterError:
    """Return the error for a schema that the model's format can't express."""
    return ParameterError(f"tools: {where}: {what} can't be enforced in the way this model writes tool calls", "tools")
