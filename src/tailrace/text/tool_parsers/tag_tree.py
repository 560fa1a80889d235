"""MiniMax M3's calls, whose values are nested tags instead of JSON.

A text is sent as it is read, unless it is nested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tailrace.base.json_schema import iter_subschemas
from tailrace.text.tool_parsers.argument_stream import ArgumentStream, ArgumentText, choose_text_check
from tailrace.text.tool_parsers.call_object import json_in_place
from tailrace.text.tool_parsers.call_parser import (
    WHITE,
    CallParser,
    NotACallError,
    Parsing,
    partial_marker,
    write_object,
)
from tailrace.text.tool_parsers.enclosed_text import Closing, Enclosure
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, escape_pattern, quote_literal
from tailrace.text.tool_parsers.lookahead import END, Part, match_sequences, read_torn_tag
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.tree_grammar import KEY, MAX_DEPTH, Tree, bounds_of, repeat_counted
from tailrace.text.tool_parsers.unquoted import Tail, text_terminals
from tailrace.text.tool_parsers.values import json_of

NAME = re.compile(r"[^<>/\s]*")  # of a tag


class TagTree(NamedTuple):
    """Objects as tags of their keys, and lists as tags `item` (MiniMax M3). `mark`: the text before every tag."""

    mark: str
    opening: str
    closing: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the calls, up to the closing marker."""
        while True:
            yield from parser.read_whitespace()
            yield from parser.begin_call(f'{self.mark}<invoke name="')
            name = yield from parser.read_name()
            yield from parser.expect('">')
            if (yield from json_in_place(parser, name, [f"{self.mark}</invoke>"])):
                yield from parser.expect(f"{self.mark}</invoke>")
                parser.end_call()
            else:
                yield from self.read_arguments(parser, ArgumentStream(parser, name))
            yield from parser.skip_ends(f"{self.mark}</invoke>")
            if (yield from parser.close()):
                return

    def read_arguments(self, parser: CallParser, call: ArgumentStream) -> Parsing[None]:
        """Read the parameters of a call and its end."""
        try:
            while not (yield from self.over(parser)):
                key, declared = yield from self.read_tag(parser, parser.parameters_of(call.name))
                sends, may_be_other = choose_text_check(declared)
                stream = ArgumentText(call, key, self.is_certain, may_be_other) if sends else None
                value = yield from self.value(parser, declared, (key, "invoke"), 0, stream)
                if value:
                    call.add(key, value)
        except NotACallError:
            call.abort()
            raise
        call.end()

    def is_certain(self, text: str) -> int:
        """Return the number of characters that belong to a value of this text, whatever follows."""
        at = text.find(self.mark)
        rest = text[:at] if at >= 0 else text[: len(text) - partial_marker(text, self.mark)]
        return len(rest.removesuffix("\n"))

    def over(self, parser: CallParser) -> Parsing[bool]:
        """Read the tag that ends a call. Return True if the call has ended.

        The tag may be missing before the next call or the end of the block.
        """
        if (yield from self.ends(parser, "invoke")):
            return True
        missing = (parser.closing or self.closing, self.opening, f"{self.mark}<invoke ")
        torn = read_torn_tag(parser, (f"{self.mark}</invoke>", self.closing), (f"{self.mark}</",))
        return torn or (parser.finished and not parser.cut) or (yield from parser.comes_one(missing))

    def ends(self, parser: CallParser, key: str) -> Parsing[bool]:
        """Read the closing tag if it comes next after white space. Return True if it does."""
        yield from parser.read_whitespace()
        return (yield from parser.accept(f"{self.mark}</{key}>"))

    def read_tag(self, parser: CallParser, declared: Declared) -> Parsing[tuple[str, Declared]]:
        """Read the tag of a key. Return the key, and what is declared of its value."""
        yield from parser.expect(f"{self.mark}<")
        key = yield from parser.read_until(">")
        is_item = key == "item" and "array" in declared.get_kinds()
        return key, declared.items() if is_item else declared.get_property(key)

    def value(
        self, parser: CallParser, inner: Declared, tags: tuple[str, str], depth: int, stream: ArgumentText | None = None
    ) -> Parsing[str]:
        """Read a value. Return it as JSON, or "" if it was sent.

        `tags`: its key, and the tag that encloses both. `stream`: the sink of a text that leaves as it is read.
        """
        if depth > MAX_DEPTH:
            raise NotACallError("deeper")
        (key, _), kinds = tags, inner.get_kinds()
        if kinds != {"string"} and (yield from match_sequences(parser, [(WHITE, f"{self.mark}<", NAME)])):
            pairs: list[tuple[str, str]] = []
            while not (yield from self.ends(parser, key)):
                name, declared = yield from self.read_tag(parser, inner)
                pairs.append((name, (yield from self.value(parser, declared, (name, key), depth + 1))))
            return tree_of(pairs, inner)
        text = yield from self.text(parser, kinds, tags, stream)
        if not text.strip() and kinds & {"object", "array"} and "string" not in kinds:
            return "[]" if "array" in kinds else "{}"
        return "" if stream is not None and stream.finish(text) else json_of(text, inner)

    def text(
        self, parser: CallParser, kinds: Collection[str], tags: tuple[str, str], stream: ArgumentText | None
    ) -> Parsing[str]:
        """Read a value without tags inside, and its closing tag."""
        key, around = tags
        begin = f'{self.mark}<invoke name="'
        between = (f"{self.mark}</invoke>", WHITE, begin)
        enclosure = Enclosure((self.opening, WHITE, begin), self.closing, between)
        end = (WHITE, f"{self.mark}</{around}>")
        followers: list[tuple[Part, ...]] = [(WHITE, f"{self.mark}<", NAME, ">")]
        ends: list[tuple[Part, ...]] = []
        if around == "invoke":
            followers += [(WHITE, begin), (WHITE, END), (*end, WHITE, begin), (*end, WHITE, END)]
            last = [(*end, WHITE, self.closing), end, (WHITE, self.closing)]
            followers, ends = (followers, last) if not kinds or "string" in kinds else (followers + last, [])
        else:
            followers.append(end)
        text, rest = yield from enclosure.search(parser, Closing(f"{self.mark}</{key}>", followers, ends, [()]), stream)
        if text is None:  # the closing tag is missing
            parser.give_back(rest)
            text, found = yield from parser.up_to(f"{self.mark}<")
            text = text.removesuffix("\n")
            if not found or not kinds:
                raise NotACallError(key)
        return text

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of all calls between one pair of markers."""
        closing = writer.mark(self.closing)

        def make_end_tag(key: str) -> str:
            return f"{self.mark}</{key}>"

        bounds = bounds_of(writer, escape_pattern(self.mark))
        before, rest = writer.head_of(self.mark)
        tails = {"marked": Tail(escape_pattern(before), rest, True)}

        def write_string(schema: Mapping[str, Any], id: str, field: str) -> str:
            return text_terminals(writer, schema, id, field, bounds, tails)["marked"]

        def write_object(fields: list[tuple[str, str, bool]], id: str) -> str:
            parts = []
            for i, (name, value, required) in enumerate(fields):
                tag = f"{writer.mark(f'{self.mark}<{name}>')} {value} {quote_literal(f'</{name}>')}"
                rule = writer.rule(f"pair_{id}_{i}", tag)
                parts.append(rule if required else f"{rule}?")
            return " ".join(parts) or '""'

        def write_array(item: str, schema: Mapping[str, Any]) -> str:
            return repeat_counted(
                f"{writer.mark(f'{self.mark}<item>')} {item} {quote_literal('</item>')}", schema, '""'
            )

        tree = Tree(writer, write_string, write_object, write_array, writer.mark(self.mark))
        last = writer.mark(make_end_tag("invoke"))

        def write_function(function: Function) -> str:
            head = writer.mark(f'{self.mark}<invoke name="{function.name}">')
            arguments = self.anything(writer, function, write_string) if function.loose else tree.arguments(function)
            return f"{head} {arguments} {last}"

        calls = writer.write_calls(write_function, quote_literal("\n"))
        return CallGrammar(self.opening, rf'"\n" {calls} "\n" {closing}')

    def anything(
        self, writer: GrammarWriter, function: Function, text: Callable[[dict[str, Any], str, str], str]
    ) -> str:
        """Return the grammar of any arguments whose names the schema declares somewhere."""
        place = writer.place(function)
        declared = (node.get("properties") for _, node in iter_subschemas(function.parameters))
        names = {name for properties in declared if isinstance(properties, dict) for name in properties}
        names = sorted(name for name in names if KEY.fullmatch(name) and name and name != "item")
        value, tag = f"any_value_{place}", f"any_tag_{place}"
        if not names:
            return '""'
        tags = [
            f"{writer.mark(f'{self.mark}<{name}>')} {value} {quote_literal(f'</{name}>')}" for name in (*names, "item")
        ]
        writer.rule(tag, " | ".join(tags))
        writer.rule(value, f"{text({'type': 'string'}, f'FREE_{place}', '')} | {tag}+ {writer.mark(self.mark)}")
        return f"({' | '.join(tags[:-1])})*"  # "item" is a tag inside others


def tree_of(pairs: list[tuple[str, str]], declared: Declared) -> str:
    """Return tags as JSON. They are a list if all are `item` and no object with such a key is declared."""
    if all(key == "item" for key, _ in pairs) and "item" not in declared.names():
        return f"[{', '.join(value for _, value in pairs)}]"
    return write_object(pairs)
