"""The places of subschemas in a JSON Schema, for packages that read schemas and must not import each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import count
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

SHARED = ("$defs", "definitions", "$schema")  # of a document, for all its parts
# annotations, which allow or forbid no value
NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly"})

STRING = {"minLength", "maxLength", "pattern", "format"}
NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
ARRAY = {
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
}
OBJECT = {
    "properties",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
}
# the keywords that apply to values of a type
KEYWORDS = {
    "string": STRING,
    "number": NUMBER,
    "integer": NUMBER,
    "array": ARRAY,
    "object": OBJECT,
    "boolean": set(),
    "null": set(),
}


def iter_subschemas(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every subschema that is an object, the root included, with its place as a JSON pointer. Subschemas that
    only a local $ref reaches are included."""
    seen: set[int] = set()
    waiting = [("#", schema)]
    while waiting:
        place, node = waiting.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield place, node
        waiting += [(f"{place}/{name}", child) for name, child in iter_children(node)]
        if not isinstance(ref := node.get("$ref"), str) or ref == "#":
            continue
        if ref.startswith("#/"):
            waiting.append((ref, resolve_pointer(schema, ref)))
        else:  # an anchor or an address: every object may be meant
            waiting += iter_objects("#", schema)


def iter_children(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values in a subschema that are subschemas by their place, with their places in it."""
    for key, value in node.items():
        if key in LIST and isinstance(value, list):
            yield from ((f"{key}/{i}", one) for i, one in enumerate(value))
        elif key in ONE:
            yield key, value
        if key in MAP and isinstance(value, dict):
            yield from ((f"{key}/{name}", one) for name, one in value.items())


def resolve_pointer(schema: Any, ref: str) -> Any:
    """Return the target of a local JSON pointer in a fragment (RFC 6901), or None."""
    for part in unquote(ref[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list):
            schema = schema[int(name)] if name.isdecimal() and int(name) < len(schema) else None
        else:
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema


def with_references_inside(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the same schema with all references pointing into its definitions. So each part, with the definitions, is
    a document of its own. A reference such as "#" then leads to a copy of the schema among the definitions."""
    if not any(refers_outside(node) for _, node in iter_subschemas(schema)):
        return schema
    whole = deepcopy(dict(schema))
    definitions = whole.setdefault("$defs", {})
    name = next(name for i in count() if (name := f"whole{i or ''}") not in definitions)
    for _, node in list(iter_subschemas(whole)):
        if refers_outside(node):
            node["$ref"] = f"#/$defs/{name}{node['$ref'][1:]}"
    definitions[name] = {key: value for key, value in whole.items() if key not in SHARED}
    return whole


def refers_outside(node: Mapping[str, Any]) -> bool:
    """Return True if a reference leads to a place of the document that is in no definition."""
    ref = node.get("$ref")
    return isinstance(ref, str) and (ref == "#" or (ref.startswith("#/") and ref.split("/")[1] not in SHARED))


def iter_objects(place: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all objects in a value, with their places."""
    waiting = [(place, value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            yield place, value
            waiting += [(f"{place}/{name}", one) for name, one in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{place}/{i}", one) for i, one in enumerate(value)]


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def list_required_names(node: Mapping[str, Any]) -> list[str]:
    """Return the required names. In draft 3 `required` was a bool; that form is ignored."""
    return [name for name in as_list(node.get("required")) if isinstance(name, str)]


def free_counts(schema: Any) -> Iterator[tuple[str, float]]:
    """Yield the places where minProperties could be met by writing one name twice, and how many names they require.

    A reader counts such a name once, and no library prevents it.
    """
    for place, node in iter_subschemas(schema):
        least = node.get("minProperties", 0)
        free = node.get("additionalProperties", True) is not False or "patternProperties" in node
        if isinstance(least, int | float) and least > max(1, len(set(list_required_names(node)))) and free:
            yield place, least
