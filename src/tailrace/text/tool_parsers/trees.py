"""Gemma's calls, whose nested values are braces with quoted texts instead of JSON. A text is sent as it is read,
unless it is nested."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.argument_stream import ArgumentStream, ArgumentText
from tailrace.text.tool_parsers.brace_grammar import Braces
from tailrace.text.tool_parsers.call_object import skip_braces
from tailrace.text.tool_parsers.call_parser import (
    WHITE,
    CallParser,
    NotACallError,
    Parsing,
    drop_text,
    in_json,
    write_object,
)
from tailrace.text.tool_parsers.enclosed_text import Closing, Enclosure
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import BLANK, CallGrammar, GrammarWriter, escape_pattern, quote_literal
from tailrace.text.tool_parsers.json_quotes import FENCE, OPENINGS, StringPlace
from tailrace.text.tool_parsers.json_strings import json_string, json_text
from tailrace.text.tool_parsers.lookahead import COMMAS, END, Part, match_sequences
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.tree_grammar import KEY, MAX_DEPTH, bounds_of
from tailrace.text.tool_parsers.unquoted import Tail, text_terminals
from tailrace.text.tool_parsers.values import json_of

BARE = re.compile(r"[^,}\]\[{\"<]*")
IN_LIST = (WHITE, ",")


class Gemma(NamedTuple):
    """Calls as call:NAME{key:value,…} between markers (Gemma 4, FunctionGemma). `quote`: the mark around a text."""

    opening: str
    closing: str
    quote: str

    def text(
        self, parser: CallParser, *followers: tuple[Part, ...], stream: ArgumentText | None = None
    ) -> Parsing[str]:
        """Read a text and the mark after it. `stream`: the sink of a text that leaves as it is read."""
        call = (self.opening, WHITE, "call:")
        enclosure = Enclosure(call, self.closing, (self.closing, WHITE, *call))
        ends = [one for one in followers if self.closing in one]
        others = [one for one in followers if self.closing not in one]
        loose = [(WHITE, mark) for mark in (*",}]", self.closing)]
        return (yield from enclosure.read(parser, Closing(self.quote, others, ends, loose), stream))

    def list_followers(self, depth: int) -> list[tuple[Part, ...]]:
        """Return what may follow a value in an object. `depth`: 1 is the object of all arguments."""
        end = (WHITE, "}", WHITE)
        over = [(*end, self.closing), (*end, self.opening), (*end, "call:"), (*end, END)] if depth == 1 else [end[:2]]
        return [*((WHITE, *one) for one in self.next_keys()), *over]

    def next_keys(self) -> list[tuple[Part, ...]]:
        """Return sequences of one or more commas and the text that may follow in an object."""
        marks = (self.quote, *OPENINGS, "}")
        return [(",", COMMAS, KEY, WHITE, ":"), *((",", COMMAS, mark) for mark in marks)]

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read one call or several calls."""
        while True:
            yield from parser.read_whitespace()
            yield from parser.begin_call("call:")
            name = yield from parser.read_name()
            parser.require_declared(name)
            yield from parser.read_whitespace()
            call = ArgumentStream(parser, name)
            try:
                yield from self.read_arguments(parser, call)
            except NotACallError:
                call.abort()
                raise
            call.end()
            yield from skip_braces(parser)
            if (yield from parser.close()) or (yield from parser.peek()) != "c":
                return

    def read_arguments(self, parser: CallParser, call: ArgumentStream) -> Parsing[None]:
        """Read and send the object of all arguments."""
        declared, then = parser.parameters_of(call.name), self.list_followers(1)
        yield from self.read_opening(parser)
        while not (yield from self.read_bracket(parser, "}", call.keys)):
            key = yield from self.read_key(parser)
            yield from parser.read_whitespace()
            if (yield from parser.accept(self.quote)):
                stream = ArgumentText(call, key, len)
                text = yield from self.text(parser, *then, stream=stream)
                if not stream.finish(text):
                    call.add(key, in_json(text))
            else:
                call.add(key, (yield from self.value(parser, declared.get_property(key), 1, then)))
            yield from self.read_commas(parser, "}")

    def read_opening(self, parser: CallParser) -> Parsing[None]:
        """Read the opening brace of an object, and commas after it."""
        yield from parser.expect("{")
        yield from parser.read_span(COMMAS, drop_text)

    def read_pairs(self, parser: CallParser, declared: Declared, depth: int) -> Parsing[list[tuple[str, str]]]:
        """Read an object. Return its keys and values."""
        found: list[tuple[str, str]] = []
        yield from self.read_opening(parser)
        while not (yield from self.read_bracket(parser, "}", found)):
            key = yield from self.read_key(parser)
            inner, then = declared.get_property(key), self.list_followers(depth + 1)
            found.append((key, (yield from self.value(parser, inner, depth + 1, then))))
            yield from self.read_commas(parser, "}")
        return found

    def read_commas(self, parser: CallParser, bracket: str) -> Parsing[None]:
        """Read one or more commas after an item. Before a bracket or the end of the block, read nothing."""
        yield from parser.read_whitespace()
        if not (yield from parser.is_next(bracket)) and not (yield from parser.comes_one(parser.ends)):
            yield from parser.expect(",")
            yield from parser.read_span(COMMAS, drop_text)

    def read_bracket(self, parser: CallParser, bracket: str, found: Sequence[Any]) -> Parsing[bool]:
        """Read a closing bracket, which may be missing at the end of the block. Return True if the brackets end."""
        return (yield from parser.accept(bracket)) or (bool(found) and (yield from parser.comes_one(parser.ends)))

    def read_key(self, parser: CallParser) -> Parsing[str]:
        """Read a key and its colon."""
        key = yield from self.key(parser)
        yield from parser.read_whitespace()
        yield from parser.expect(":")
        return key

    def key(self, parser: CallParser) -> Parsing[str]:
        """Read a key, which some models quote."""
        if (yield from parser.accept(self.quote)):
            return (yield from self.text(parser, (WHITE, ":")))
        if (yield from parser.peek()) in OPENINGS:
            return (yield from json_text(parser))
        parts: list[str] = []
        yield from parser.read_span(KEY, parts.append)
        if not (key := "".join(parts)):
            raise NotACallError("a key")
        return key

    def value(
        self, parser: CallParser, declared: Declared, depth: int, then: Sequence[tuple[Part, ...]]
    ) -> Parsing[str]:
        """Read a value. Return it as JSON. `then`: the sequences that may follow a text."""
        if depth > MAX_DEPTH:
            raise NotACallError("deeper")
        yield from parser.read_whitespace()
        if (yield from parser.accept(self.quote)):
            return in_json((yield from self.text(parser, *then)))
        char = yield from parser.peek()
        parts: list[str] = []
        if char in OPENINGS and not (yield from parser.is_next(FENCE)):
            closers = "]" * (then[0] == IN_LIST) + "}" * depth
            yield from json_string(parser, parts.append, StringPlace(parser.ends, closers))
            return "".join(parts)
        if char == "{":
            pairs = yield from self.read_pairs(parser, declared, depth)
            return write_object(pairs)
        if char == "[":
            return (yield from self.items(parser, declared.items(), depth))
        yield from parser.read_span(BARE, parts.append)
        while (
            then[0] != IN_LIST
            and (yield from parser.is_next(","))
            and not (yield from match_sequences(parser, self.next_keys()))
        ):
            parts.append(parser.take(1))
            yield from parser.read_span(BARE, parts.append)
        if not (text := "".join(parts)).strip():
            raise NotACallError("a value")
        return json_of(text.strip(), declared)

    def items(self, parser: CallParser, declared: Declared, depth: int) -> Parsing[str]:
        """Read a list. Return it as JSON."""
        found: list[str] = []
        yield from parser.expect("[")
        yield from parser.read_span(COMMAS, drop_text)
        while not (yield from self.read_bracket(parser, "]", found)):
            found.append((yield from self.value(parser, declared, depth + 1, (IN_LIST, (WHITE, "]")))))
            yield from self.read_commas(parser, "]")
        return f"[{', '.join(found)}]"

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of calls, each between its own markers."""
        opening, closing, quote = map(writer.mark, (self.opening, self.closing, self.quote))

        bounds = bounds_of(
            writer,
            f"{escape_pattern(self.quote)}{BLANK}([,:}}\\]]|{escape_pattern(self.closing)})|{escape_pattern(self.opening)}{BLANK}call:",
            self.quote,
            self.closing,
        )
        before, rest = writer.head_of(self.quote)
        tails = {"quoted": Tail(escape_pattern(before), rest, False)}

        def write_string(schema: Mapping[str, Any], id: str, field: str) -> str:
            return f"{quote} {text_terminals(writer, schema, id, field, bounds, tails)['quoted']}"

        any_key = writer.rule("ANY_KEY", "/[A-Za-z0-9_.$\\-]+/")
        tree = Braces(write_string, lambda name: quote_literal(f"{name}:"), f'{any_key} ":"').make_tree(writer)

        def write_function(function: Function) -> str:
            arguments = tree.free["object"] if function.loose else tree.arguments(function)
            return f"{quote_literal(f'call:{function.name}')} {arguments}"

        return CallGrammar(self.opening, f"{writer.write_calls(write_function, f'{closing} {opening}')} {closing}")
