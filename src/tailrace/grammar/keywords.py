"""JSON Schema's keywords: the binding ones, their valid values, and how some reduce to simpler ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tailrace.base.json_schema import KEYWORDS as TYPES
from tailrace.errors import format_json
from tailrace.grammar.check import UnsupportedError

Node = dict[str, Any]

APPLIED = {"$ref", "allOf", "anyOf", "oneOf"}
ANYWHERE = APPLIED | {"type", "enum", "const", "$dynamicRef", "$recursiveRef", "not", "if", "then", "else"}
# drafts 4 to 2020-12; by the standard every other keyword is an annotation
BINDING = set[str]().union(*TYPES.values()) | ANYWHERE
# no grammar here enforces these; `simplify_node` removes those without effect, and rewrites some as others
REFUSED = {
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "not",
    "if",
    "then",
    "else",
}


def is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def is_number(value: Any) -> bool:
    """Return True for a finite number of any size: an integer of hundreds of digits is no float."""
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def is_nonnegative_integer(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == math.floor(value)


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_schema, value))


def is_named(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_schema, value.values()))


def is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


FORMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        is_nonnegative_integer,
    ),
    **dict.fromkeys(("minimum", "maximum"), is_number),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"), lambda value: is_number(value) or isinstance(value, bool)
    ),
    "multipleOf": lambda value: is_number(value) and value > 0,
    **dict.fromkeys(("pattern", "format", "$ref"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), is_schemas),
    "prefixItems": lambda value: value == [] or is_schemas(value),
    "items": lambda value: is_schema(value) or value == [] or is_schemas(value),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), is_named),
    **dict.fromkeys(
        (
            "additionalProperties",
            "additionalItems",
            "unevaluatedProperties",
            "unevaluatedItems",
            "propertyNames",
            "contains",
            "not",
            "if",
            "then",
            "else",
        ),
        is_schema,
    ),
    "required": is_texts,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "type": is_type,
    "uniqueItems": lambda value: isinstance(value, bool),
    "dependencies": lambda value: isinstance(value, dict),
    "dependentRequired": lambda value: isinstance(value, dict),
}


def check_keywords(node: Node, place: str) -> Node:
    """Return the binding keywords of a schema.

    Raises:
        UnsupportedError: a keyword's value is invalid by the standard.
    """
    for key, fits in FORMS.items():
        if key in node and not fits(node[key]):
            raise UnsupportedError(f"{key} can't be {format_json(node[key], 80)} at {place}")
    # only `simplify_node` reads this subschema; the translation does not
    if isinstance(names := node.get("propertyNames"), dict):
        check_keywords(names, f"{place}/propertyNames")
    return {key: value for key, value in node.items() if key in BINDING}


def split_types(node: Node) -> tuple[list[str], Node]:
    """Return the types that a value may have, and the keywords that apply to values of these types."""
    given = node.get("type", [name for name in TYPES if name != "integer"])
    names = list(dict.fromkeys(given if isinstance(given, list) else [given]))
    if "number" in names and "integer" in names:
        names.remove("integer")
    bound = set().union(*(TYPES[name] for name in names))
    return names, {key: value for key, value in node.items() if key in bound | ANYWHERE}


def simplify_node(node: Node) -> Node | bool:
    """Return an equal schema without keywords that have no effect here, and with some rewritten as others."""
    node = dict(node)
    for step in (simplify_arrays, simplify_objects, simplify_conditions):
        step(node)
    if node.get("not") in (True, {}):
        return False
    if node.get("not") is False:
        del node["not"]
    return node


def simplify_arrays(node: Node) -> None:
    """Rewrite the older array keywords: up to 2019-09, `items` could be a list, and `additionalItems` applied to the
    items after it."""
    after = node.pop("additionalItems", None)
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if after is not None:
            node["items"] = after
    if node.get("uniqueItems") is False or node.get("maxItems", 2) <= 1:
        node.pop("uniqueItems", None)
    if "contains" not in node:
        for key in ("minContains", "maxContains"):
            node.pop(key, None)
    elif node["contains"] in (True, {}):
        del node["contains"]
        node["minItems"] = max(node.get("minItems", 0), node.pop("minContains", 1))
        if "maxContains" in node:
            node["maxItems"] = min(node.pop("maxContains"), node.get("maxItems", math.inf))
    elif node.get("minContains") == 0 and "maxContains" not in node:
        del node["contains"], node["minContains"]
    if may_rewrite(node, "unevaluatedItems"):
        node.setdefault("items", node.pop("unevaluatedItems"))


def simplify_objects(node: Node) -> None:
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        if all(value in ([], True, {}) for value in node.get(key, {}).values()):
            node.pop(key, None)
    if may_rewrite(node, "unevaluatedProperties"):
        node.setdefault("additionalProperties", node.pop("unevaluatedProperties"))
    names = node.get("propertyNames")
    if names is False:
        del node["propertyNames"]
        node["maxProperties"] = 0
    elif names is not None:
        name_by_name(node, names)


def may_rewrite(node: Node, key: str) -> bool:
    """Return True if this keyword (unevaluated…) applies to a known set of items or names, and so can be rewritten.
    Removes it if it has no effect."""
    if node.get(key) in (True, {}) or key not in node:
        node.pop(key, None)
        return False
    plain = "items" if key == "unevaluatedItems" else "additionalProperties"
    if plain in node:
        del node[key]
        return False
    return not node.keys() & (APPLIED | {"$dynamicRef", "$recursiveRef", "not", "if", "dependentSchemas", "contains"})


def name_by_name(node: Node, names: Any) -> None:
    """Rewrite propertyNames as patternProperties or properties, if nothing else restricts names."""
    binding = {} if names is True else {key: value for key, value in names.items() if key in BINDING}
    given = binding.pop("type", "string")
    if not binding and "string" in (given if isinstance(given, list) else [given]):
        del node["propertyNames"]
        return
    if node.keys() & {"properties", "patternProperties"} or given != "string":
        return
    whatever = node.get("additionalProperties", True)
    match binding:
        case {"pattern": str(pattern), **others} if not others:
            equivalent: Node = {"patternProperties": {pattern: whatever}}
        case {"enum": list(texts), **others} if not others and is_texts(texts):
            equivalent = {"properties": dict.fromkeys(texts, whatever)}
        case {"minLength": _, **others} | {"maxLength": _, **others} if others.keys() <= {"minLength", "maxLength"}:
            least = int(binding.get("minLength", 0))
            most = int(binding["maxLength"]) if "maxLength" in binding else ""
            equivalent = {"patternProperties": {rf"^[\s\S]{{{least},{most}}}$": whatever}}
        case _:
            return
    del node["propertyNames"]
    node.update(equivalent, additionalProperties=False)


def simplify_conditions(node: Node) -> None:
    """Remove `if` without `then` and `else`, and those without `if`."""
    condition = node.get("if")
    if isinstance(condition, bool) or condition == {}:
        kept = node.pop("else" if condition is False else "then", True)
        node["allOf"] = [*node.get("allOf", ()), kept]
        condition = None
    if condition is None:
        for key in ("if", "then", "else"):
            node.pop(key, None)
    elif not node.keys() & {"then", "else"}:
        del node["if"]
