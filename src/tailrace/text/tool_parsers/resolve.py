"""What a JSON schema says about one value. Parsers read untyped text with it, and grammars are written from it.

The schema may say it behind $ref, in allOf, anyOf or oneOf, in enum or const, as `nullable`, or as a list of types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.base.json_schema import NOTES, as_list, resolve_pointer
from tailrace.base.schema_conflicts import is_equal, kinds_of_value
from tailrace.text.tool_parsers.dialects import plain_type, with_null

MAX_STEPS = 256  # references and alternatives followed for one value; a schema may refer to itself
JOINED = ("properties", "required")
# keywords that mean something together
TIED = (("items", "prefixItems", "additionalItems"), ("contains", "minContains", "maxContains"), ("if", "then", "else"))
KINDS = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object"))


class Declared(NamedTuple):
    """A schema and the document that its references point into."""

    schema: Any
    root: Any = None

    @property
    def document(self) -> Any:
        """Return the document that references point into."""
        return self.schema if self.root is None else self.root

    def plain(self) -> Any:
        """Return the schema without $ref and allOf at its top and at the top of its alternatives; see
        `simplify_schema`."""
        return simplify_schema(self.schema, self.document)

    def get_kinds(self) -> set[str]:
        """Return the types that a value may have. The set is empty if any type is allowed."""
        return kinds_of(self.plain())

    def get_values(self) -> list[Any] | None:
        """Return the values of enum and const, also in alternatives. Return None if other values may fit."""
        return list_schema_values(self.plain())

    def get_property(self, name: str) -> Declared:
        """Return a property of an object, in any of the alternatives."""
        for choice in iter_choices(self.plain()):
            properties = choice.get("properties")
            if isinstance(properties, Mapping) and name in properties:
                return Declared(properties[name], self.document)
        more = [choice.get("additionalProperties") for choice in iter_choices(self.plain())]
        return Declared(next((one for one in more if isinstance(one, Mapping)), {}), self.document)

    def names(self) -> list[str]:
        """Return the names of an object's declared properties."""
        found = (choice.get("properties") for choice in iter_choices(self.plain()))
        return list(dict.fromkeys(name for one in found if isinstance(one, Mapping) for name in one))

    def items(self) -> Declared:
        """Return the items of a list, in any of the alternatives."""
        found = (choice.get("items") for choice in iter_choices(self.plain()))
        return Declared(next((one for one in found if isinstance(one, Mapping)), {}), self.document)


ANYTHING = Declared({})


class Steps:
    """The budget of references and alternatives that are followed for one value.

    All paths share the budget. Paths that fork at every reference would be too many, although each path is short.
    """

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def take(self, number: int) -> bool:
        """Take a number of steps. Return False if no steps were left."""
        there = self.left > 0
        self.left -= number
        return there


def simplify_schema(schema: Any, root: Any, steps: Steps | None = None) -> Any:
    """Return an equivalent schema whose $ref and allOf are replaced by their keywords.

    Keywords that collide stay in an allOf. The alternatives are simplified in the same way, and `nullable` becomes a
    type. Nested values keep their references. References beyond MAX_STEPS stay too. `steps`: the steps that are left.
    """
    if not isinstance(schema, Mapping):
        return schema
    steps = Steps() if steps is None else steps
    parts, rest = [], dict(schema)
    if isinstance(ref := rest.get("$ref"), str) and ref.startswith("#") and steps.take(1):
        target = root if ref == "#" else resolve_pointer(root, ref)
        if isinstance(target, Mapping | bool):
            parts.append(target)
            del rest["$ref"]
    if isinstance(given := rest.get("allOf"), list) and steps.take(len(given)):
        parts += rest.pop("allOf")
    if parts:
        return combine_schemas([simplify_schema(part, root, steps) for part in [*parts, rest]])
    for key in ("anyOf", "oneOf"):
        if isinstance(given := rest.get(key), list) and steps.take(len(given)):
            rest[key] = [simplify_schema(choice, root, steps) for choice in given]
    return with_null(flatten_alternatives(rest))


def flatten_alternatives(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with nested alternatives flattened.

    An alternative that has only alternatives is replaced by them. A single alternative replaces the list.
    """
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


def combine_schemas(parts: list[Any]) -> Any:
    """Return one schema of several that must all fit. Schemas that collide stay in an allOf."""
    if any(part is False for part in parts):
        return False
    whole: dict[str, Any] = {}
    rest: list[Any] = []
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        own = {key: value for key, value in part.items() if key not in NOTES}
        if are_independent(whole, own):
            joint = joint_keywords(whole, own)
            own, whole = own | joint, whole | joint
        if are_independent(whole, own) and all(whole.get(key, value) == value for key, value in own.items()):
            whole |= own
        else:
            rest.append(part)
        whole = {key: value for key, value in part.items() if key in NOTES} | whole
    return whole | ({"allOf": rest} if rest else {})


def are_independent(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if no keyword of one schema changes what another keyword of the other schema means."""
    for tied in TIED:
        mine, theirs = ([schema.get(key) for key in tied] for schema in (one, other))
        if any(mine) and any(theirs) and mine != theirs:
            return False
    names = [set(schema.get("properties") or ()) for schema in (one, other)]
    free = [schema.get("additionalProperties", True) in (True, {}) for schema in (one, other)]
    return (free[0] or names[1] <= names[0]) and (free[1] or names[0] <= names[1])


def joint_keywords(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types, properties and required names of two schemas of one value."""
    found: dict[str, Any] = {}
    mine, theirs = one.get("properties"), other.get("properties")
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        both = [name for name in mine if name in theirs and mine[name] != theirs[name]]
        found["properties"] = {**mine, **theirs, **{name: {"allOf": [mine[name], theirs[name]]} for name in both}}
    if isinstance(mine := one.get("required"), list) and isinstance(theirs := other.get("required"), list):
        found["required"] = list(dict.fromkeys([*mine, *theirs]))
    if one.get("type") != other.get("type") and (kinds := shared_kinds(named_kinds(one), named_kinds(other))):
        found["type"] = sorted(kinds) if len(kinds) > 1 else kinds.pop()
    return found


def with_listed_types(schema: Any) -> Any:
    """Return the schema of an enum or a const with the values that fit its types, and with the types of these values
    only.

    Return False if no value fits. Return any other schema unchanged.
    """
    if not isinstance(schema, Mapping) or (values := own_values(schema)) is None:
        return schema
    kinds = named_kinds(schema)
    kept = [value for value in values if not kinds or kinds & kinds_of_value(value)]
    if "const" in schema and isinstance(others := schema.get("enum"), list):
        kept = [value for value in kept if any(is_equal(value, one) for one in others)]
    found = {key: value for key, value in schema.items() if key != "const"}
    return bool(kept) and found | {"enum": kept, "type": sorted({json_type_of(value) for value in kept})}


def iter_choices(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a simplified schema, and all its alternatives and parts."""
    waiting = [schema]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, Mapping):
            yield node
            for key in ("anyOf", "oneOf", "allOf"):
                waiting += as_list(node.get(key))


def kinds_of(schema: Any) -> set[str]:
    """Return the types that a simplified schema names, also in alternatives, or the types of its listed values.

    The set is empty if the schema names no type, or if one alternative may be anything.
    """
    if not isinstance(schema, Mapping):
        return set()
    kinds = named_kinds(schema)
    if not kinds and (values := own_values(schema)):
        kinds = {json_type_of(value) for value in values}
    for key in ("anyOf", "oneOf"):
        if given := as_list(schema.get(key)):
            each = [kinds_of(choice) for choice in given if choice is not False]
            kinds = intersect_kinds(kinds, set().union(*each) if all(each) else set())
    for part in as_list(schema.get("allOf")):
        kinds = intersect_kinds(kinds, kinds_of(part))
    return kinds


def intersect_kinds(kinds: set[str], others: set[str]) -> set[str]:
    """Return the types that fit two demands. An empty set demands nothing."""
    if not kinds or not others:
        return kinds or others
    return shared_kinds(kinds, others) or kinds


def shared_kinds(kinds: set[str], others: set[str]) -> set[str]:
    """Return the types that both sets allow."""
    wider, other = [one | ({"integer"} if "number" in one else set()) for one in (kinds, others)]
    shared = wider & other
    return shared - {"integer"} if "number" in shared else shared


def named_kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that `type` names."""
    named = plain_type(schema.get("type"))
    return {named} if isinstance(named, str) else {kind for kind in as_list(named) if isinstance(kind, str)}


def own_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of const, or else of enum. Return None if the schema has neither."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def json_type_of(value: Any) -> str:
    """Return the JSON type of a value."""
    return next((name for kind, name in KINDS if isinstance(value, kind)), "null")


def list_schema_values(schema: Any) -> list[Any] | None:
    """Return the values of enum and const of a simplified schema, also in alternatives.

    Return None if other values may fit.
    """
    if not isinstance(schema, Mapping):
        return None
    if (values := own_values(schema)) is not None:
        return values
    given = as_list(schema.get("anyOf")) or as_list(schema.get("oneOf"))
    each = [[None] if kinds_of(choice) == {"null"} else list_schema_values(choice) for choice in given]
    found = [values for values in each if values is not None]
    return [value for values in found for value in values] if given and len(found) == len(given) else None
