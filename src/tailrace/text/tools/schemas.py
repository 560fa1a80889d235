"""What must hold of a JSON schema before it becomes part of a grammar of calls: that it is one, and not too deep; that names can be
counted. Raises ParameterErrors that name the tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.errors import ParameterError
from tailrace.json_schema import free_counts, subschemas

MAX_DEPTH = 64  # of nested JSON, as for every other schema


def check_form(schema: Mapping[str, Any], field: str, param: str = "tools") -> None:
    """The keywords that writers of grammars read themselves are what the standard says of them; all others the matching library checks.

    Raises:
        ParameterError: one is not, or the schema is nested too deep.
    """
    check_depth(schema, field, param)
    for place, node in subschemas(schema):
        for key, value in node.items():
            if not fits(key, value, place):
                raise ParameterError(f"{field}: no JSON schema: {key} at {place} can't be {value!r:.100}", param)


def check_depth(schema: Any, field: str, param: str) -> None:
    """Raise ParameterError where it is nested deeper than MAX_DEPTH; without recursion, which could itself go too deep."""
    level, depth = [schema], 0
    while level:
        if depth > MAX_DEPTH:
            raise ParameterError(f"{field}: a schema nested deeper than {MAX_DEPTH}", param)
        inner = [v.values() if isinstance(v, Mapping) else v for v in level if isinstance(v, (Mapping, list))]
        level, depth = [v for values in inner for v in values], depth + 1


def fits(key: str, value: Any, place: str) -> bool:
    """What a keyword says has the form that the standard gives it."""
    match key:
        case "type":
            return isinstance(value, str) or texts(value)
        case "enum":
            return isinstance(value, list)
        case "required":  # draft 3 had a bool in the property itself, which binds no more
            return texts(value) or (isinstance(value, bool) and place != "#")
        case "anyOf" | "oneOf" | "allOf" | "prefixItems":
            return isinstance(value, list) and all(map(is_schema, value))
        case "properties" | "patternProperties" | "$defs" | "definitions":
            return isinstance(value, dict) and all(map(is_schema, value.values()))
        case "pattern" | "$ref":
            return isinstance(value, str)
        case "minLength" | "maxLength":
            return (
                not isinstance(value, bool) and isinstance(value, (int, float)) and value >= 0 and value == value // 1
            )
    return True


def texts(value: Any) -> bool:
    """A list of nothing but texts."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def is_schema(value: Any) -> bool:
    """An object, or true or false."""
    return isinstance(value, dict | bool)


def check_counts(schema: Mapping[str, Any], field: str, param: str = "tools") -> None:
    """Raise ParameterError where minProperties could be met by the same name twice, which no matcher can prevent."""
    for place, least in free_counts(schema):
        raise ParameterError(
            f"{field}: minProperties {least} at {place}, where names are free, can't be enforced", param
        )
