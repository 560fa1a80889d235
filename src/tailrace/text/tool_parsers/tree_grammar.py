"""Grammar of arguments whose nested values have a syntax of their own. The grammar follows the schemas of the
values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tailrace.base.json_schema import NOTES, SHARED
from tailrace.errors import format_json
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter, escape_pattern
from tailrace.text.tool_parsers.parameter_list import ParameterList, not_expressible, parameter_list, parameter_lists
from tailrace.text.tool_parsers.resolve import kinds_of, own_values, simplify_schema, with_listed_types
from tailrace.text.tool_parsers.unquoted import Bounds, without_null

KEY = re.compile(r"[^\s:,{}\[\]\"<>]*")
OF_CONTENT = {"additionalProperties", "patternProperties", "propertyNames", "minItems", "maxItems", "prefixItems"}
MAX_DEPTH = 64  # of nested values that are read
SCALARS = {"number", "integer", "boolean", "null"}


class Tree:
    """A writer of grammars for values in a syntax of its own, according to their schemas.

    - `text`: (schema, suffix for rules, place) → the grammar of a text.
    - `whole`: (name, value, required) of each field, suffix → the grammar of an object.
    - `many`: item, schema → the grammar of a list.
    - `tail`: the grammar after every value. `text` has already written it.
    - `free`: type → the rule of values of this type whose inside the schema does not name.

    Raises:
        ParameterError: a schema can't be expressed.
    """

    def __init__(
        self,
        writer: GrammarWriter,
        text: Callable[[Mapping[str, Any], str, str], str],
        whole: Callable[[list[tuple[str, str, bool]], str], str],
        many: Callable[[str, Mapping[str, Any]], str],
        tail: str = "",
        free: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.writer, self.text, self.whole, self.many, self.tail, self.free = writer, text, whole, many, tail, free
        self._rules: dict[str, str] = {}
        self._objects = 0

    def arguments(self, function: Function) -> str:
        """Return the grammar of a function's arguments."""
        return f"({' | '.join(self.object(one, function.name) for one in parameter_lists(function))})"

    def value(self, schema: Any, root: Mapping[str, Any], field: str) -> str:
        """Return the rule of a value. A schema that comes again, even inside itself, has the same rule."""
        plain = with_listed_types(simplify_schema(schema, root))
        if not isinstance(plain, Mapping) or "allOf" in plain or "oneOf" in plain or "not" in plain:
            raise not_expressible(field, "such a schema")
        key = json.dumps(plain, sort_keys=True)
        if key not in self._rules:
            self._rules[key] = f"value_{len(self._rules)}"
            self.writer.rule(self._rules[key], self.body(dict(plain), root, field))
        return self._rules[key]

    def body(self, plain: dict[str, Any], root: Mapping[str, Any], field: str) -> str:
        """Return the grammar of a value."""
        id, kinds = str(len(self._rules)), kinds_of(plain)
        shared = {key: root[key] for key in SHARED if key in root}
        if given := plain.get("anyOf"):
            beside = {key: value for key, value in plain.items() if key not in ("anyOf", *NOTES, *SHARED)}
            found = [simplify_schema({"allOf": [beside, choice]}, root) for choice in given]
            found = [choice for choice in found if with_listed_types(choice) is not False]
            if not found:
                raise not_expressible(field, "anyOf of which no value fits")
            return " | ".join(dict.fromkeys(self.value(choice, root, field) for choice in found))
        if any(isinstance(value, list | dict) for value in own_values(plain) or ()):
            raise not_expressible(field, "an enum of lists or objects")
        if kinds == {"string", "null"}:
            return f'{self.text(without_null(plain), id, field)} | "null" {self.tail}'
        if kinds == {"string"}:
            return self.text(plain, id, field)
        if not kinds:  # any value: only those without nested values
            kinds = {"string", *SCALARS} - {"integer"}
        if kinds <= SCALARS:
            return f"{self.writer.write_json(shared | plain, field)} {self.tail}"
        if kinds == {"array"} and int(plain.get("minItems", 0)) > plain.get("maxItems", math.inf):
            raise not_expressible(field, "a minItems above maxItems")
        if kinds == {"array"} and ("items" in plain or "array" not in self.free):
            return f"{self.many(self.value(plain.get('items', {}), root, field), plain)} {self.tail}"
        if kinds == {"object"} and plain.get("properties"):
            return f"{self.object(parameter_list(field, plain, root), field)} {self.tail}"
        if kinds == {"object"} and plain.get("additionalProperties") is False:
            return f"{self.object(ParameterList((), None), field)} {self.tail}"
        if len(kinds) == 1 and (kind := next(iter(kinds))) in self.free and not plain.keys() & OF_CONTENT:
            return f"{self.free[kind]} {self.tail}"
        if len(kinds) > 1:
            return " | ".join(self.value(plain | {"type": kind}, root, field) for kind in sorted(kinds))
        raise not_expressible(field, "a value of which the schema does not say what it is")

    @staticmethod
    def is_key(name: str) -> bool:
        """Return whether a property may have this name."""
        return bool(name) and name != "item" and KEY.fullmatch(name) is not None

    def object(self, parameters: ParameterList, field: str) -> str:
        """Return the grammar of an object with the properties that it declares."""
        fields = []
        for name, inner, required in parameters.fields:
            if not self.is_key(name):
                raise not_expressible(field, f"the name {format_json(name)}")
            fields.append((name, self.value(inner, inner, f"{field}.{name}"), required))
        self._objects += 1
        id = f"o{self._objects}"
        return self.writer.rule(f"object_{id}", self.whole(fields, id))


def join_optional_parts(writer: GrammarWriter, parts: list[tuple[str, bool]], id: str, comma: str = '","') -> str:
    """Return the grammar of parts in order, each required or not. A comma precedes each written part except the
    first."""
    rest = '""'
    for i, (part, required) in reversed(list(enumerate(parts))):
        # after_i: the rest if an earlier part was written; first_i: the rest if no part was
        one, after, first = writer.rule(f"arg_{id}_{i}", part), f"after_{id}_{i}", f"first_{id}_{i}"
        followed, alone = f"{one} {rest}", rest.replace("after_", "first_")
        writer.rule(after, f"{comma} {followed}" + ("" if required else f" | {rest}"))
        writer.rule(first, followed + ("" if required else f" | {alone}"))
        rest = after
    return rest.replace("after_", "first_")


def repeat_counted(item: str, schema: Mapping[str, Any], comma: str) -> str:
    """Return the grammar of as many items as the schema allows."""
    low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
    if high is not None and high <= 0:
        return '""'
    more = f"({comma} {item}){{{max(low - 1, 0)},{'' if high is None else int(high) - 1}}}"
    return f"{item} {more}" if low else f"({item} {more})?"


def bounds_of(writer: GrammarWriter, pattern: str, *marks: str) -> Bounds:
    """Return what texts can't hold. `marks`: their tokens that a matcher reads as text are also forbidden."""
    return Bounds("|".join([pattern, *map(escape_pattern, writer.plain_tokens(*marks))]))
