"""Schemas of other dialects as JSON Schema: OpenAPI's `nullable`, Gemini's types in capitals."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tailrace.base.json_schema import iter_subschemas


def with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with OpenAPI's `nullable` as a type of JSON Schema."""
    if schema.get("nullable") is not True:
        return schema
    schema = {key: value for key, value in schema.items() if key != "nullable"}
    named = schema.get("type")
    if isinstance(named, str) or (isinstance(named, list) and "null" not in named):
        schema["type"] = [*([named] if isinstance(named, str) else named), "null"]
    if isinstance(values := schema.get("enum"), list) and None not in values:
        schema["enum"] = [*values, None]
    for key in ("anyOf", "oneOf"):
        if isinstance(given := schema.get(key), list) and "type" not in schema:
            schema[key] = [*given, {"type": "null"}]
    return schema


def standard_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with every `nullable` as a type, types in small letters, and no null as a type.

    Return the schema itself if it has this form already. The caller has checked its depth.
    """
    if not any(is_of_dialect(node) for _, node in iter_subschemas(schema)):
        return schema
    whole = deepcopy(schema)
    for _, node in list(iter_subschemas(whole)):
        given = {key: plain_type(one) if key == "type" else one for key, one in node.items()}
        plain = with_null({key: one for key, one in given.items() if key != "type" or one is not None})
        node.clear()
        node.update(plain)
    return whole


def is_of_dialect(node: dict[str, Any]) -> bool:
    """Return True if the schema is not written as JSON Schema prescribes."""
    named = node.get("type")
    return node.get("nullable") is True or named != plain_type(named) or ("type" in node and named is None)


def plain_type(named: Any) -> Any:
    """Return the value of `type` in small letters."""
    if isinstance(named, list):
        return [one.lower() if isinstance(one, str) else one for one in named]
    return named.lower() if isinstance(named, str) else named
