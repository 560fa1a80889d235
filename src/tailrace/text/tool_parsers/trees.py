"""Calls whose nested values are written in the model's own words instead of JSON: Gemma's braces with quoted texts, and
MiniMax M3's tags in tags. A call is sent when it is complete."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, in_json
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.resolve import Declared, kinds_of, listed, simplified
from tailrace.text.tool_parsers.unquoted import TIES, is_text, not_expressible, text_terminal
from tailrace.text.tool_parsers.values import json_of, json_string, json_text

BARE = re.compile(r"[^,}\]\[{\"<]*")
KEY = re.compile(r"[^\s:,{}\[\]\"<>]*")
MAX_DEPTH = 64  # of nested values
SCALARS = {"number", "integer", "boolean", "null"}


class Gemma(NamedTuple):
    """call:NAME{key:value,…} between markers, of Gemma 4 and FunctionGemma. quote: stands around a text."""

    opening: str
    closing: str
    quote: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """One call, or several."""
        while True:
            yield from parser.whitespace()
            yield from parser.begin_call("call:")
            name = yield from parser.word()
            parser.require_declared(name)
            yield from parser.whitespace()
            pairs = yield from self.pairs(parser, parser.parameters_of(name), 0)
            parser.add_call(name, pairs)
            if (yield from parser.close()) or (yield from parser.peek()) != "c":
                return

    def pairs(self, parser: CallParser, declared: Declared, depth: int) -> Parsing[list[tuple[str, str]]]:
        """An object's keys and values."""
        found: list[tuple[str, str]] = []
        yield from parser.expect("{")
        yield from parser.whitespace()
        while not (yield from parser.accept("}")):
            if found:
                yield from parser.expect(",")
                yield from parser.whitespace()
            key = yield from self.key(parser)
            yield from parser.whitespace()
            yield from parser.expect(":")
            found.append((key, (yield from self.value(parser, declared.property(key), depth + 1))))
            yield from parser.whitespace()
        return found

    def key(self, parser: CallParser) -> Parsing[str]:
        """A key, which some models quote."""
        if (yield from parser.accept(self.quote)):
            return (yield from parser.until(self.quote))
        if (yield from parser.peek()) == '"':
            return (yield from json_text(parser))
        parts: list[str] = []
        yield from parser.span(KEY, parts.append)
        if not (key := "".join(parts)):
            raise NotACallError("a key")
        return key

    def value(self, parser: CallParser, declared: Declared, depth: int) -> Parsing[str]:
        """A value in JSON."""
        if depth > MAX_DEPTH:
            raise NotACallError("deeper")
        yield from parser.whitespace()
        if (yield from parser.accept(self.quote)):
            return in_json((yield from parser.until(self.quote)))
        char = yield from parser.peek()
        parts: list[str] = []
        if char == '"':
            yield from json_string(parser, parts.append)
            return "".join(parts)
        if char == "{":
            pairs = yield from self.pairs(parser, declared, depth)
            return f"{{{', '.join(f'{in_json(key)}: {value}' for key, value in pairs)}}}"
        if char == "[":
            return (yield from self.items(parser, declared.items(), depth))
        yield from parser.span(BARE, parts.append)
        if not (text := "".join(parts)).strip():
            raise NotACallError("a value")
        return json_of(text.strip(), declared)

    def items(self, parser: CallParser, declared: Declared, depth: int) -> Parsing[str]:
        """A list in JSON."""
        found: list[str] = []
        yield from parser.expect("[")
        yield from parser.whitespace()
        while not (yield from parser.accept("]")):
            if found:
                yield from parser.expect(",")
            found.append((yield from self.value(parser, declared, depth + 1)))
            yield from parser.whitespace()
        return f"[{', '.join(found)}]"

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """One call between each pair of markers."""
        opening, closing, quote = map(writer.mark, (self.opening, self.closing, self.quote))

        def text(schema: Mapping[str, Any], id: str, field: str) -> str:
            return f"{quote} {text_terminal(writer, schema, id, field, (self.quote, self.closing), self.quote)}"

        def whole(fields: list[tuple[str, str, bool]], id: str) -> str:
            parts = [(f"{quoted(f'{name}:')} {value}", required) for name, value, required in fields]
            return f'"{{" {separated(writer, parts, id)} "}}"'

        def many(item: str, schema: Mapping[str, Any]) -> str:
            return f'"[" {counted(item, schema, quoted(","))} "]"'

        tree = Tree(writer, text, whole, many)
        calls = writer.calls(lambda f: f"{quoted(f'call:{f.name}')} {tree.arguments(f)}", f"{closing} {opening}")
        return CallGrammar(self.opening, f"{calls} {closing}")


class TagTree(NamedTuple):
    """Objects as tags of their keys, and lists as tags `item`, of MiniMax M3. mark: stands before every tag."""

    mark: str
    opening: str
    closing: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """The calls, up to the closing marker."""
        while True:
            yield from parser.whitespace()
            yield from parser.begin_call(f'{self.mark}<invoke name="')
            name = yield from parser.word()
            yield from parser.expect('">')
            parameters = parser.parameters_of(name)
            pairs: list[tuple[str, str]] = []
            while not (yield from self.ends(parser, "invoke")):
                pairs.append((yield from self.pair(parser, parameters, 0)))
            parser.add_call(name, pairs)
            if (yield from parser.close()):
                return

    def ends(self, parser: CallParser, key: str) -> Parsing[bool]:
        """Read the closing tag, if it comes next after white space."""
        yield from parser.whitespace()
        return (yield from parser.accept(f"{self.mark}</{key}>"))

    def pair(self, parser: CallParser, declared: Declared, depth: int) -> Parsing[tuple[str, str]]:
        """A key and its value in JSON."""
        if depth > MAX_DEPTH:
            raise NotACallError("deeper")
        yield from parser.expect(f"{self.mark}<")
        key = yield from parser.until(">")
        inner = declared.items() if key == "item" and "array" in declared.kinds() else declared.property(key)
        text, _ = yield from parser.up_to(self.mark)
        if not text.strip() and not (yield from parser.comes(f"{self.mark}</{key}>")):
            pairs: list[tuple[str, str]] = []
            while not (yield from self.ends(parser, key)):
                pairs.append((yield from self.pair(parser, inner, depth + 1)))
            return key, tree_of(pairs, inner)
        yield from parser.expect(f"{self.mark}</{key}>")
        kinds = inner.kinds()
        if not text.strip() and kinds & {"object", "array"} and "string" not in kinds:
            return key, "[]" if "array" in kinds else "{}"
        return key, json_of(text, inner)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """All calls between one pair of markers."""
        closing = writer.mark(self.closing)

        def end(key: str) -> str:
            return f"{self.mark}</{key}>"

        def text(schema: Mapping[str, Any], id: str, field: str) -> str:
            return text_terminal(writer, schema, id, field, (self.mark,), self.mark)

        def whole(fields: list[tuple[str, str, bool]], id: str) -> str:
            parts = []
            for i, (name, value, required) in enumerate(fields):
                tag = f"{writer.mark(f'{self.mark}<{name}>')} {value} {quoted(f'</{name}>')}"
                rule = writer.rule(f"pair_{id}_{i}", tag)
                parts.append(rule if required else f"{rule}?")
            return " ".join(parts) or '""'

        def many(item: str, schema: Mapping[str, Any]) -> str:
            return counted(f"{writer.mark(f'{self.mark}<item>')} {item} {quoted('</item>')}", schema, '""')

        tree = Tree(writer, text, whole, many, writer.mark(self.mark))
        last = writer.mark(end("invoke"))

        def written(function: Function) -> str:
            head = writer.mark(f'{self.mark}<invoke name="{function.name}">')
            return f"{head} {tree.arguments(function)} {last}"

        calls = writer.calls(written, quoted("\n"))
        return CallGrammar(self.opening, rf'"\n" {calls} "\n" {closing}')


def tree_of(pairs: list[tuple[str, str]], declared: Declared) -> str:
    """Tags in JSON: a list if they are all `item` and no object with such a key is declared."""
    if all(key == "item" for key, _ in pairs) and "item" not in declared.names():
        return f"[{', '.join(value for _, value in pairs)}]"
    return f"{{{', '.join(f'{in_json(key)}: {value}' for key, value in pairs)}}}"


# ---- the grammar


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
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        if given := plain.get("anyOf"):
            beside = {key: value for key, value in plain.items() if key == "type"}
            return " | ".join(self.value(choice | beside, root, field) for choice in given)
        if kinds == {"string", "null"}:
            text = plain | {"type": "string"}
            if "enum" in plain:
                text["enum"] = [value for value in plain["enum"] if value is not None]
            return f'{self.text(text, id, field)} | "null" {self.tail}'
        if is_text(plain):
            return self.text(plain, id, field)
        if (values := listed(plain)) is not None:
            if any(not isinstance(value, bool | int | float | None) for value in values):
                raise not_expressible(field, "an enum of texts and other values")
            return f"({' | '.join(quoted(in_json(value)) for value in values)}) {self.tail}"
        if kinds and kinds <= SCALARS:
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
        id = f"o{len(self._rules)}_{len(fields)}"
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
