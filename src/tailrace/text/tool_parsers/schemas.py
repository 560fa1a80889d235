"""Checks of a JSON schema before it becomes part of a grammar of calls: its form, its depth, its counts of names.

All checks raise ParameterErrors that name the tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.base.json_schema import free_counts, iter_subschemas
from tailrace.errors import ParameterError, format_json
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.ecma import translate_pattern

MAX_DEPTH = 64  # of nested JSON, as for every other schema


def check_form(schema: Mapping[str, Any], field: str, param: str = "tools") -> None:
    """Check the keywords that the writers of grammars read. All others are checked by the matching library.

    Raises:
        ParameterError: a keyword's value is not what the standard says, or the schema is nested too deep.
    """
    check_depth(schema, field, param)
    for place, node in iter_subschemas(schema):
        for key, value in node.items():
            if not is_valid(key, value, place):
                raise ParameterError(f"{field}: no JSON schema: {key} at {place} can't be {format_json(value)}", param)


def check_depth(schema: Any, field: str, param: str) -> None:
    """Raise ParameterError if the schema is nested deeper than MAX_DEPTH. Use a loop, since recursion could go too
    deep."""
    level, depth = [schema], 0
    while level:
        if depth > MAX_DEPTH:
            raise ParameterError(f"{field}: a schema nested deeper than {MAX_DEPTH}", param)
        inner = [v.values() if isinstance(v, Mapping) else v for v in level if isinstance(v, (Mapping, list))]
        level, depth = [v for values in inner for v in values], depth + 1


def is_valid(key: str, value: Any, place: str) -> bool:
    """Return True if the keyword's value has the form that the standard prescribes."""
    match key:
        case "type":
            return isinstance(value, str) or is_text_list(value)
        case "enum":
            return isinstance(value, list)
        case "required":  # draft 3 had a bool in the property itself, which is no longer binding
            return is_text_list(value) or (isinstance(value, bool) and place != "#")
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


def is_text_list(value: Any) -> bool:
    """Return True if the value is a list of strings."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def is_schema(value: Any) -> bool:
    """Return True if the value is an object, true or false."""
    return isinstance(value, dict | bool)


def check_counts(schema: Mapping[str, Any], field: str, param: str = "tools") -> None:
    """Raise ParameterError if writing a name twice could meet minProperties, which no matcher can prevent."""
    for place, least in free_counts(schema):
        raise ParameterError(
            f"{field}: minProperties {least} at {place}, where names are free, can't be enforced", param
        )


UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]")  # what JSON in calls can't write
SPELT = re.compile(
    r"\\x(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|\\u00(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|\\c[A-Za-z]|\\v|\\0"
)


def check_characters(schema: Mapping[str, Any]) -> None:
    """Raise ParameterError if a listed value, a name or a pattern has characters that calls can't write.

    These are control characters without an escape of their own, and halves of surrogate pairs.
    """
    for place, node in iter_subschemas(schema):
        for key in ("const", "enum", "properties", "required"):
            value = node.get(key)
            if any(map(UNWRITABLE.search, iter_strings(list(value) if key == "properties" and value else value))):
                raise make_character_error(key, place)
        for key in ("pattern", "patternProperties"):
            if any(UNWRITABLE.search(text) or SPELT.search(text) for text in list_patterns(node.get(key))):
                raise make_character_error(key, place)


def check_pattern(pattern: str, place: str) -> None:
    """Raise ParameterError if a pattern is malformed, or has a part that can't be enforced."""
    try:
        translate_pattern(pattern)
    except UnsupportedError as error:
        raise ParameterError(f"{place}: {error}", place) from None


def make_character_error(key: str, place: str) -> ParameterError:
    """Return the error for such a character."""
    return ParameterError(f"tools: {key} at {place}: control characters can't be written in calls", "tools")


def list_patterns(value: Any) -> list[str]:
    """Return the patterns of `pattern` or `patternProperties`."""
    return [value] if isinstance(value, str) else list(value or ())


def iter_strings(value: Any) -> Iterator[str]:
    """Yield all strings in a value, names included."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
