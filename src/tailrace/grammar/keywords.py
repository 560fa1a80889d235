"""JSON Schema's keywords: which bind, what their values must look like, and simpler ones that say the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tailrace.grammar.check import UnsupportedError

Node = dict[str, Any]

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
APPLIED = {"$ref", "allOf", "anyOf", "oneOf"}
ANYWHERE = APPLIED | {"type", "enum", "const", "$dynamicRef", "$recursiveRef", "not", "if", "then", "else"}
# of the standard's drafts 4 to 2020-12; what else stands in a schema is annotation, by the standard
BINDING = STRING | NUMBER | ARRAY | OBJECT | ANYWHERE
TYPES = {
    "string": STRING,
    "number": NUMBER,
    "integer": NUMBER,
    "array": ARRAY,
    "object": OBJECT,
    "boolean": set(),
    "null": set(),
}
# no grammar here says these; `simpler` takes those away that say nothing, or what others can say
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
    """Of any size: an integer of hundreds of digits is no float."""
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def is_count(value: Any) -> bool:
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
        is_count,
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


def checked(node: Node, place: str) -> Node:
    """Its binding keywords.

    Raises:
        UnsupportedError: the value of one can't be that, by the standard.
    """
    for key, fits in FORMS.items():
        if key in node and not fits(node[key]):
            raise UnsupportedError(f"{key} can't be {node[key]!r:.80} at {place}")
    # the one schema that `simpler` reads and nobody translates
    if isinstance(names := node.get("propertyNames"), dict):
        checked(names, f"{place}/propertyNames")
    return {key: value for key, value in node.items() if key in BINDING}


def typed(node: Node) -> tuple[list[str], Node]:
    """The types that a value may have, and the keywords that bind some value of them."""
    given = node.get("type", [name for name in TYPES if name != "integer"])
    names = list(dict.fromkeys(given if isinstance(given, list) else [given]))
    if "number" in names and "integer" in names:
        names.remove("integer")
    bound = set().union(*(TYPES[name] for name in names))
    return names, {key: value for key, value in node.items() if key in bound | ANYWHERE}


def simpler(node: Node) -> Node | bool:
    """The same, without keywords that say nothing here, and some in words of others."""
    node = dict(node)
    for step in (arrays, objects, conditions):
        step(node)
    if node.get("not") in (True, {}):
        return False
    if node.get("not") is False:
        del node["not"]
    return node


def arrays(node: Node) -> None:
    """Up to 2019-09, `items` could be a list, and `additionalItems` what comes after."""
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
    if evaluates(node, "unevaluatedItems"):
        node.setdefault("items", node.pop("unevaluatedItems"))


def objects(node: Node) -> None:
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        if all(value in ([], True, {}) for value in node.get(key, {}).values()):
            node.pop(key, None)
    if evaluates(node, "unevaluatedProperties"):
        node.setdefault("additionalProperties", node.pop("unevaluatedProperties"))
    names = node.get("propertyNames")
    if names is False:
        del node["propertyNames"]
        node["maxProperties"] = 0
    elif names is not None:
        name_by_name(node, names)


def evaluates(node: Node, key: str) -> bool:
    """What no other keyword looked at is left to this one, and it is plain which that is. Says nothing: it is dropped."""
    if node.get(key) in (True, {}) or key not in node:
        node.pop(key, None)
        return False
    plain = "items" if key == "unevaluatedItems" else "additionalProperties"
    if plain in node:
        del node[key]
        return False
    return not node.keys() & (APPLIED | {"$dynamicRef", "$recursiveRef", "not", "if", "dependentSchemas", "contains"})


def name_by_name(node: Node, names: Any) -> None:
    """propertyNames in words of patternProperties or properties, where nothing else is said of names."""
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
            said: Node = {"patternProperties": {pattern: whatever}}
        case {"enum": list(texts), **others} if not others and is_texts(texts):
            said = {"properties": dict.fromkeys(texts, whatever)}
        case {"minLength": _, **others} | {"maxLength": _, **others} if others.keys() <= {"minLength", "maxLength"}:
            least = int(binding.get("minLength", 0))
            most = int(binding["maxLength"]) if "maxLength" in binding else ""
            said = {"patternProperties": {rf"^[\s\S]{{{least},{most}}}$": whatever}}
        case _:
            return
    del node["propertyNames"]
    node.update(said, additionalProperties=False)


def conditions(node: Node) -> None:
    """`if` without consequences, and consequences without `if`."""
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
