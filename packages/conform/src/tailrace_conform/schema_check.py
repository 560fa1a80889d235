"""Does a value fit a JSON schema? For the keywords that the laws' own schemas use, and no others."""

from __future__ import annotations

import re
from typing import Any

from tailrace_conform.plain import quoted

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def misfit(value: Any, schema: dict[str, Any], at: str = "the value") -> str | None:
    """What does not fit, in words; None where all does."""
    if "anyOf" in schema:
        if any(misfit(value, one, at) is None for one in schema["anyOf"]):
            return None
        return f"{at} fits none of anyOf"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at} is {quoted(value)}, none of {quoted(schema['enum'])}"
    if "const" in schema and value != schema["const"]:
        return f"{at} is {quoted(value)}, not {quoted(schema['const'])}"
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return f"{at} is {quoted(value)}, not of type {kind}"
    if isinstance(value, dict):
        return object_misfit(value, schema, at)
    if isinstance(value, list):
        return array_misfit(value, schema, at)
    return text_misfit(value, schema, at) if isinstance(value, str) else number_misfit(value, schema, at)


def object_misfit(value: dict[str, Any], schema: dict[str, Any], at: str) -> str | None:
    properties = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        return f"{at} lacks {quoted(missing[0])}"
    if schema.get("additionalProperties") is False and (more := [name for name in value if name not in properties]):
        return f"{at} has {quoted(more[0])}, which the schema does not allow"
    return next(
        (said for name in properties if name in value and (said := misfit(value[name], properties[name], name))), None
    )


def array_misfit(value: list[Any], schema: dict[str, Any], at: str) -> str | None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return f"{at} has {len(value)} items"
    return next((said for one in value if (said := misfit(one, schema.get("items", {}), f"an item of {at}"))), None)


def text_misfit(value: str, schema: dict[str, Any], at: str) -> str | None:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return f"{at} has {len(value)} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{at} is {quoted(value)}, which does not match {quoted(schema['pattern'])}"
    return None


def number_misfit(value: Any, schema: dict[str, Any], at: str) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"{at} is {value}, out of its range"
    return None
