"""Proves that no value fits several JSON Schemas at once: by types, listed values, bounds, and by the properties and
items that a value must have. Keywords that this module does not understand are ignored, so a proof always holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tailrace.base.json_schema import as_list

KINDS = ("null", "boolean", "string", "integer", "number", "array", "object")
APPLIED = ("$ref", "allOf", "anyOf", "oneOf")
MAX_DEPTH = 12  # of properties and items
MAX_ALTERNATIVES = 256  # of one comparison
MAX_STEPS = 200_000  # of all comparisons of one schema

Scalar = tuple[bool, bool | float | str | None]  # whether it is true or false, and the value: 1 is 1.0, but not true
Part = dict[str, Any]  # one schema without the keywords of APPLIED


class Conflicts:
    """Comparisons of the schemas of one document.

    Args:
        resolve: a schema with a $ref → the schemas that must all fit instead of it.
    """

    def __init__(self, resolve: Callable[[Mapping[str, Any]], list[Any]]) -> None:
        self._resolve, self._steps = resolve, 0

    def exclude(self, schemas: Iterable[Any], depth: int = 0) -> bool:
        """Return True if no value can fit all schemas. False: a value may fit, or the schemas are too large to know."""
        found = self.alternatives(schemas, depth)
        return found is not None and all(self._has_conflict(parts, depth) for parts in found)

    def alternatives(self, schemas: Iterable[Any], depth: int = 0) -> list[list[Part]] | None:
        """Return the lists of parts that a value may fit: it must fit all parts of one list. None: there are too many
        lists."""
        found: list[list[Part]] = [[]]
        for schema in schemas:
            inner = self._list_options(schema, depth)
            if inner is None or len(found) * len(inner) > MAX_ALTERNATIVES:
                return None
            found = [before + parts for before in found for parts in inner]
        return found

    def tags(self, schemas: list[Any]) -> dict[str, set[Scalar]]:
        """Return the properties of every value that fits all schemas, with a superset of their values.

        Only properties with listed scalars are included. Empty if a value may be no object.
        """
        found = self.alternatives(schemas)
        if found is None or len(found) != 1 or kinds_of(found[0]) != {"object"}:
            return {}
        required = {name: None for part in found[0] for name in as_list(part.get("required"))}
        values = {name: self._list_scalars([property_of(part, name) for part in found[0]]) for name in required}
        return {name: one for name, one in values.items() if one is not None}

    def _list_scalars(self, schemas: list[Any]) -> set[Scalar] | None:
        """Return the listed values of all alternatives; None if others may fit."""
        found = self.alternatives(schemas, 1)
        values = None if found is None else [find_listed_values(parts) for parts in found]
        if values is None or any(one is None for one in values):
            return None
        flat = [value for one in values for value in one or ()]
        scalars = not any(isinstance(value, list | dict) for value in flat)
        return {(isinstance(value, bool), value) for value in flat} if scalars else None

    def _list_options(self, schema: Any, depth: int) -> list[list[Part]] | None:
        self._steps += 1
        if not isinstance(schema, Mapping):
            return [] if schema is False else [[]]
        if depth > 4 * MAX_DEPTH or self._steps > MAX_STEPS:
            return None
        if "$ref" in schema:
            return self.alternatives(self._resolve(schema), depth + 1)
        own = {key: value for key, value in schema.items() if key not in APPLIED}
        found = self.alternatives(as_list(schema.get("allOf")), depth + 1)
        for key in ("anyOf", "oneOf"):
            if found is not None and isinstance(given := schema.get(key), list):
                options = [self._list_options(one, depth + 1) for one in given]
                if any(one is None for one in options) or len(found) * len(options) > MAX_ALTERNATIVES:
                    return None
                found = [before + parts for before in found for one in options for parts in one or ()]
        return None if found is None else [[own, *parts] for parts in found]

    def _has_conflict(self, parts: list[Part], depth: int) -> bool:
        """Return True if no value fits all parts."""
        if depth > MAX_DEPTH:
            return False
        if (values := find_listed_values(parts)) is not None:
            return not any(all(self.may_fit(value, part, depth) for part in parts) for value in values)
        checks = {"array": self._arrays_conflict, "object": self._objects_conflict}
        kinds = kinds_of(parts)
        return all(checks.get(kind, scalars_conflict)(parts, depth) for kind in KINDS if kind in kinds)

    def may_fit(self, value: Any, part: Part, depth: int) -> bool:
        """Return False if the value certainly doesn't fit."""
        if (values := find_listed_values([part])) is not None and not any(is_equal(value, one) for one in values):
            return False
        if not kinds_of([part]) & kinds_of_value(value) or scalars_conflict([part, make_exact_bounds(value)], depth):
            return False
        if isinstance(value, dict):
            return all(name in value for name in as_list(part.get("required"))) and all(
                not self.exclude([{"const": one}, property_of(part, name)], depth + 1) for name, one in value.items()
            )
        return True

    def _arrays_conflict(self, parts: list[Part], depth: int) -> bool:
        least, most = intersect_bounds(parts, "minItems", "maxItems")
        prefixes = [len(as_list(part.get("prefixItems"))) for part in parts]
        places = range(min(int(least), 1 + max(prefixes, default=0)))
        return least > most or any(self.exclude([item_of(part, i) for part in parts], depth + 1) for i in places)

    def _objects_conflict(self, parts: list[Part], depth: int) -> bool:
        required = {name for part in parts for name in as_list(part.get("required"))}
        least, most = intersect_bounds(parts, "minProperties", "maxProperties")
        return max(least, len(required)) > most or any(
            self.exclude([property_of(part, name) for part in parts], depth + 1) for name in sorted(required)
        )


def kinds_of(parts: list[Part]) -> set[str]:
    """Return the types of a value that fits all parts, "integer" among them where "number" is."""
    found: set[str] = set(KINDS)
    for part in parts:
        if "type" in part:
            given = part["type"]
            names = set(given if isinstance(given, list) else [given])
            found &= names | ({"integer"} if "number" in names else set())
    return found


def kinds_of_value(value: Any) -> set[str]:
    """Return the types of a value."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case str():
            return {"string"}
        case int() | float():
            return {"number", "integer"} if value == math.floor(value) else {"number"}
    return {"array"} if isinstance(value, list) else {"object"}


def find_listed_values(parts: list[Part]) -> list[Any] | None:
    """Return the values of the first const or enum, or None."""
    for part in parts:
        if "const" in part:
            return [part["const"]]
        if isinstance(values := part.get("enum"), list):
            return values
    return None


def is_equal(one: Any, other: Any) -> bool:
    """Return True if JSON Schema takes two values as equal: 1 is 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(value, other[name]) for name, value in one.items())
    return one == other


def make_exact_bounds(value: Any) -> Part:
    """Return the bounds that only values of the same size or length fit."""
    if isinstance(value, str):
        return {"type": "string", "minLength": len(value), "maxLength": len(value)}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"type": "number", "minimum": value, "maximum": value}
    return {}


def scalars_conflict(parts: list[Part], _: int) -> bool:
    """Return True if no number or no text is within all bounds."""
    kinds = kinds_of(parts)
    if kinds == {"string"}:
        least, most = intersect_bounds(parts, "minLength", "maxLength")
        return least > most
    if not kinds <= {"number", "integer"}:
        return not kinds
    least, most = intersect_bounds(parts, "minimum", "maximum")
    above, below = intersect_bounds(parts, "exclusiveMinimum", "exclusiveMaximum")
    return least > most or above >= min(most, below) or least >= below


def intersect_bounds(parts: list[Part], low: str, high: str) -> tuple[float, float]:
    """Return the largest of the lower bounds and the smallest of the upper ones."""
    lows = [part[low] for part in parts if is_number(part.get(low))]
    highs = [part[high] for part in parts if is_number(part.get(high))]
    return max(lows, default=-math.inf if low.endswith("inimum") else 0), min(highs, default=math.inf)


def is_number(value: Any) -> bool:
    """Return True for numbers; draft 4's bounds may be true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def property_of(part: Mapping[str, Any], name: str) -> Any:
    """Return the schema of a property, as far as it is known."""
    properties = part.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return True if part.get("patternProperties") else part.get("additionalProperties", True)


def item_of(part: Part, place: int) -> Any:
    """Return the schema of an item, as far as it is known."""
    prefix, items = as_list(part.get("prefixItems")), part.get("items", True)
    if isinstance(items, list):  # up to draft 2019-09
        prefix, items = items, part.get("additionalItems", True)
    return prefix[place] if place < len(prefix) else items
