"""The grammar of arguments whose nested values are written in a syntax of their own, after their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.text.tool_parsers.call_parser import in_json
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter, quoted
from tailrace.text.tool_parsers.resolve import SHARED, kinds_of, listed, simplified
from tailrace.text.tool_parsers.unquoted import TIES, not_expressible, without_null

KEY = re.compile(r"[^\s:,{}\[\]\"<>]*")
SCALARS = {"number", "integer", "boolean", "null"}


class Tree:
    """The grammar of values in a syntax of its own, after their schemas.

    Args:
        text: (schema, suffix for rules, place) → a text. whole: (name, value, required) of each field, suffix → an
            object. many: item, schema → a list. tail: what follows every value; `text` has written it.

    Raises:
        ParameterError: a schema that can't be expressed.
    """

    def __init__(
        self,
        writer: GrammarWriter,
        text: Callable[[Mapping[str, Any], str, str], str],
        whole: Callable[[list[tuple[str, str, bool]], str], str],
        many: Callable[[str, Mapping[str, Any]], str],
        tail: str = "",
    ) -> None:
        self.writer, self.text, self.whole, self.many, self.tail = writer, text, whole, many, tail
        self._rules: dict[str, str] = {}
        self._objects = 0

    def arguments(self, function: Function) -> str:
        """The arguments of a function."""
        return self.object(function.parameters, function.parameters, function.name)

    def value(self, schema: Any, root: Mapping[str, Any], field: str) -> str:
        """The rule of a value. A schema that comes again, even in itself, has the same rule."""
        plain = simplified(schema, root)
        if not isinstance(plain, Mapping) or "allOf" in plain or "oneOf" in plain or "not" in plain:
            raise not_expressible(field, "such a schema")
        key = json.dumps(plain, sort_keys=True)
        if key not in self._rules:
            self._rules[key] = f"value_{len(self._rules)}"
            self.writer.rule(self._rules[key], self.body(dict(plain), root, field))
        return self._rules[key]

    def body(self, plain: dict[str, Any], root: Mapping[str, Any], field: str) -> str:
        """The grammar of a value."""
        id, kinds = str(len(self._rules)), kinds_of(plain)
        shared = {key: root[key] for key in SHARED if key in root}
        if given := plain.get("anyOf"):
            beside = {key: value for key, value in plain.items() if key == "type"}
            return " | ".join(self.value(choice | beside, root, field) for choice in given)
        if kinds == {"string", "null"}:
            return f'{self.text(without_null(plain), id, field)} | "null" {self.tail}'
        if kinds == {"string"}:
            return self.text(plain, id, field)
        if (values := listed(plain)) is not None:
            texts = [value for value in values if isinstance(value, str)]
            if any(isinstance(value, list | dict) for value in values):
                raise not_expressible(field, "an enum of lists or objects")
            parts = [f"{quoted(in_json(value))} {self.tail}" for value in values if not isinstance(value, str)]
            return " | ".join([*parts, *([self.value({"enum": texts}, root, field)] if texts else [])])
        if not kinds:  # anything: of that the values without an inside
            kinds = {"string", *SCALARS} - {"integer"}
        if kinds <= SCALARS:
            return f"{self.writer.json(shared | plain)} {self.tail}"
        if kinds == {"array"}:
            return f"{self.many(self.value(plain.get('items', {}), root, field), plain)} {self.tail}"
        if kinds == {"object"} and plain.get("properties"):
            return f"{self.object(plain, root, field)} {self.tail}"
        if len(kinds) > 1:
            return " | ".join(self.value(plain | {"type": kind}, root, field) for kind in sorted(kinds))
        raise not_expressible(field, "a value of which the schema does not say what it is")

    def object(self, schema: Mapping[str, Any], root: Mapping[str, Any], field: str) -> str:
        """The grammar of an object with the properties that it declares."""
        if ties := TIES & schema.keys():
            raise not_expressible(field, sorted(ties)[0])
        fields = []
        for name, inner in schema.get("properties", {}).items():
            if not KEY.fullmatch(name) or not name or name == "item":
                raise not_expressible(field, f"the name {name!r:.100}")
            if inner is not False:
                value = self.value(inner if isinstance(inner, Mapping) else {}, root, f"{field}.{name}")
                fields.append((name, value, name in schema.get("required", ())))
        self._objects += 1
        id = f"o{self._objects}"
        return self.writer.rule(f"object_{id}", self.whole(fields, id))


def separated(writer: GrammarWriter, parts: list[tuple[str, bool]], id: str, comma: str = '","') -> str:
    """Parts in order, each required or not, with a comma before each but the first one written."""
    rest = '""'
    for i, (part, required) in reversed(list(enumerate(parts))):
        # after_i: what follows if a part was written before; first_i: if none was
        one, after, first = writer.rule(f"arg_{id}_{i}", part), f"after_{id}_{i}", f"first_{id}_{i}"
        followed, alone = f"{one} {rest}", rest.replace("after_", "first_")
        writer.rule(after, f"{comma} {followed}" + ("" if required else f" | {rest}"))
        writer.rule(first, followed + ("" if required else f" | {alone}"))
        rest = after
    return rest.replace("after_", "first_")


def counted(item: str, schema: Mapping[str, Any], comma: str) -> str:
    """As many items as the schema allows."""
    low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
    if high is not None and high <= 0:
        return '""'
    more = f"({comma} {item}){{{max(low - 1, 0)},{'' if high is None else int(high) - 1}}}"
    return f"{item} {more}" if low else f"({item} {more})?"
