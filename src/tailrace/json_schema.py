"""Where a JSON Schema has subschemas. For the rooms that read schemas and must not import each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

# keywords whose value is a subschema, a list of subschemas, or subschemas by name
ONE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
MAP = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")


def subschemas(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subschema that is an object, the root included, with its place as a JSON pointer. Includes those that only
    a local $ref leads to."""
    seen: set[int] = set()
    waiting = [("#", schema)]
    while waiting:
        place, node = waiting.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield place, node
        waiting += [(f"{place}/{name}", child) for name, child in children(node)]
        if not isinstance(ref := node.get("$ref"), str) or ref == "#":
            continue
        if ref.startswith("#/"):
            waiting.append((ref, pointed(schema, ref)))
        else:  # an anchor or an address: every object may be meant
            waiting += objects("#", schema)


def children(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values in a subschema that are subschemas by their place, with their places in it."""
    for key, value in node.items():
        if key in LIST and isinstance(value, list):
            yield from ((f"{key}/{i}", one) for i, one in enumerate(value))
        elif key in ONE:
            yield key, value
        if key in MAP and isinstance(value, dict):
            yield from ((f"{key}/{name}", one) for name, one in value.items())


def pointed(schema: Any, ref: str) -> Any:
    """The target of a local JSON pointer in a fragment (RFC 6901); None if there is none."""
    for part in unquote(ref[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list):
            schema = schema[int(name)] if name.isdecimal() and int(name) < len(schema) else None
        else:
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema


def objects(place: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects in a value, with their places."""
    waiting = [(place, value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            yield place, value
            waiting += [(f"{place}/{name}", one) for name, one in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{place}/{i}", one) for i, one in enumerate(value)]


def listed(node: Mapping[str, Any]) -> list[str]:
    """The required names; draft 3 had a bool there, which is no longer binding."""
    names = node.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def free_counts(schema: Any) -> Iterator[tuple[str, float]]:
    """Places where minProperties could be met by writing the same name twice, and how many names they require. A reader
    counts such a name once, and no library prevents it."""
    for place, node in subschemas(schema):
        least = node.get("minProperties", 0)
        free = node.get("additionalProperties", True) is not False or "patternProperties" in node
        if isinstance(least, int | float) and least > max(1, len(set(listed(node)))) and free:
            yield place, least
