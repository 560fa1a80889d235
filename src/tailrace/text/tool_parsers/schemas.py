"""What must hold of a JSON schema before it becomes part of a grammar of calls: that it is one, and not too deep; that names can be
counted. Raises ParameterErrors that name the tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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


UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]")  # what JSON in calls has no way to write
SPELT = re.compile(
    r"\\x(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|\\u00(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|\\c[A-Za-z]|\\v|\\0"
)


def check_characters(schema: Mapping[str, Any]) -> None:
    """Raise ParameterError where a listed value, a name or a pattern has characters that a call can't: control characters but for those
    with escapes of their own, and halves of surrogate pairs."""
    for place, node in subschemas(schema):
        for key in ("const", "enum", "properties", "required"):
            said = node.get(key)
            if any(map(UNWRITABLE.search, strings(list(said) if key == "properties" and said else said))):
                raise unwritable(key, place)
        for key in ("pattern", "patternProperties"):
            if any(UNWRITABLE.search(text) or SPELT.search(text) for text in patterns(node.get(key))):
                raise unwritable(key, place)


def unwritable(key: str, place: str) -> ParameterError:
    """That a call can't hold it."""
    return ParameterError(f"tools: {key} at {place}: control characters can't be written in calls", "tools")


def patterns(said: Any) -> list[str]:
    """Those of `pattern` or `patternProperties`."""
    return [said] if isinstance(said, str) else list(said or ())


def strings(value: Any) -> Iterator[str]:
    """All texts within, names too."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
