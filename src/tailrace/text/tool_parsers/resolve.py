"""What a JSON schema says about one value, wherever it says it: behind $ref, in allOf, anyOf and oneOf, in enum and
const, as `nullable`, as a list of types. Parsers read untyped text with it, and grammars are written from the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.json_schema import pointed, subschemas

MAX_STEPS = 256  # references and alternatives that are followed for one value; a schema may refer to itself
NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly"})
SHARED = ("$defs", "definitions")
VALUES = ("enum", "const", "default", "examples")  # hold values, not schemas
KINDS = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object"))


class Declared(NamedTuple):
    """A schema and the document that its references point into."""

    schema: Any
    root: Any = None

    @property
    def document(self) -> Any:
        """Where references point."""
        return self.schema if self.root is None else self.root

    def plain(self) -> Any:
        """The schema without $ref and allOf at its top and at the top of its alternatives; see `simplified`."""
        return simplified(self.schema, self.document)

    def kinds(self) -> set[str]:
        """The types that a value may have; empty if any."""
        return kinds_of(self.plain())

    def values(self) -> list[Any] | None:
        """The values of enum and const, also in alternatives; None if other values may fit."""
        return listed(self.plain())

    def property(self, name: str) -> Declared:
        """A property of an object, in any of the alternatives."""
        for choice in choices(self.plain()):
            properties = choice.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                return Declared(properties[name], self.document)
        more = [choice.get("additionalProperties") for choice in choices(self.plain())]
        return Declared(next((one for one in more if isinstance(one, Mapping)), {}), self.document)

    def names(self) -> list[str]:
        """The names of an object's declared properties."""
        found = (choice.get("properties") for choice in choices(self.plain()))
        return list(dict.fromkeys(name for one in found if isinstance(one, Mapping) for name in one))

    def items(self) -> Declared:
        """The items of a list, in any of the alternatives."""
        found = (choice.get("items") for choice in choices(self.plain()))
        return Declared(next((one for one in found if isinstance(one, Mapping)), {}), self.document)


ANYTHING = Declared({})


class Steps:
    """The references and alternatives that are followed for one value, all paths together: paths that fork at every
    reference would be too many, each of them short."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def take(self, number: int) -> bool:
        """Take so many of them. False if there were none left."""
        there = self.left > 0
        self.left -= number
        return there


def simplified(schema: Any, root: Any, steps: Steps | None = None) -> Any:
    """The same schema, with its $ref and allOf put in their places as far as keywords don't collide, the same in each
    of its alternatives, and `nullable` as a type. Nested values keep their references, and so does what comes behind
    MAX_STEPS. steps: those that are left."""
    if not isinstance(schema, Mapping):
        return schema
    steps = Steps() if steps is None else steps
    parts, rest = [], dict(schema)
    if isinstance(ref := rest.get("$ref"), str) and ref.startswith("#") and steps.take(1):
        target = root if ref == "#" else pointed(root, ref)
        if isinstance(target, Mapping | bool):
            parts.append(target)
            del rest["$ref"]
    if isinstance(given := rest.get("allOf"), list) and steps.take(len(given)):
        parts += rest.pop("allOf")
    if parts:
        return together([simplified(part, root, steps) for part in [*parts, rest]])
    for key in ("anyOf", "oneOf"):
        if isinstance(given := rest.get(key), list) and steps.take(len(given)):
            rest[key] = [simplified(choice, root, steps) for choice in given]
    return with_null(flat(rest))


def flat(schema: dict[str, Any]) -> dict[str, Any]:
    """An alternative that is itself nothing but alternatives becomes several; a single one takes their place."""
    if not isinstance(given := schema.get("anyOf"), list):
        return schema
    found: list[Any] = []
    for choice in given:
        inner = (
            isinstance(choice, Mapping)
            and isinstance(choice.get("anyOf"), list)
            and not choice.keys() - NOTES - {"anyOf"}
        )
        found += choice["anyOf"] if inner else [choice]
    if len(found) == 1 and isinstance(found[0], Mapping) and not schema.keys() - NOTES - {"anyOf"}:
        return {**found[0], **{key: value for key, value in schema.items() if key in NOTES}}
    return schema | {"anyOf": found}


def only_alternatives(schema: Any) -> bool:
    """True if the schema says nothing but anyOf."""
    return isinstance(schema, Mapping) and not schema.keys() - NOTES - {"anyOf"}


def together(parts: list[Any]) -> Any:
    """One schema of several that must all fit; those that collide stay in an allOf."""
    if any(part is False for part in parts):
        return False
    whole: dict[str, Any] = {}
    rest: list[Any] = []
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        own = {key: value for key, value in part.items() if key not in NOTES}
        if all(key not in whole or whole[key] == value for key, value in own.items()):
            whole |= own
        else:
            rest.append(part)
        whole = {key: value for key, value in part.items() if key in NOTES} | whole
    return whole | ({"allOf": rest} if rest else {})


def with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """`nullable` of OpenAPI as a type of JSON Schema."""
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


def all_with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with every `nullable` as a type. The schema itself if it has none."""
    if not any(node.get("nullable") is True for _, node in subschemas(schema)):
        return schema

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return with_null({key: one if key in VALUES else changed(one) for key, one in value.items()})
        return [changed(one) for one in value] if isinstance(value, list) else value

    return changed(schema)


def choices(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema itself and all its alternatives and parts, of a simplified one."""
    waiting = [schema]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, Mapping):
            yield node
            for key in ("anyOf", "oneOf", "allOf"):
                waiting += _list(node.get(key))


def kinds_of(schema: Any) -> set[str]:
    """The types that a simplified schema names, also in alternatives, or those of its listed values; empty if it names
    none, or one alternative may be anything."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else {kind for kind in _list(named) if isinstance(kind, str)}
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if not kinds and values:
        kinds = {kind_of(value) for value in values}
    for key in ("anyOf", "oneOf"):
        if given := _list(schema.get(key)):
            each = [kinds_of(choice) for choice in given if choice is not False]
            kinds = both(kinds, set().union(*each) if all(each) else set())
    for part in _list(schema.get("allOf")):
        kinds = both(kinds, kinds_of(part))
    return kinds


def both(kinds: set[str], others: set[str]) -> set[str]:
    """The types that fit two demands, of which an empty one demands nothing."""
    if not kinds or not others:
        return kinds or others
    shared = kinds & others
    for one, other in ((kinds, others), (others, kinds)):
        if "number" in one and "integer" in other:
            shared = shared | {"integer"}
    return shared or kinds


def kind_of(value: Any) -> str:
    """The JSON type of a value."""
    return next((name for kind, name in KINDS if isinstance(value, kind)), "null")


def listed(schema: Any) -> list[Any] | None:
    """The values of enum and const of a simplified schema, also in alternatives; None if others may fit."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(values := schema.get("enum"), list):
        return values
    given = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
    each = [[None] if kinds_of(choice) == {"null"} else listed(choice) for choice in given]
    found = [values for values in each if values is not None]
    return [value for values in found for value in values] if given and len(found) == len(given) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
