"""Calls whose arguments stand one by one between tags, as bare text: Qwen3-Coder, GLM, MiniMax M2, DeepSeek V3.2 and
others. A call is sent when it is complete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quoted
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.unquoted import is_text, not_expressible, parameter_sequence, text_terminal
from tailrace.text.tool_parsers.values import is_json, json_of, unquoted

HOLE = re.compile(r"(NAME|KEY|TYPE|INDEX|\n)")
LINE = r'"\n"'
TEXT = Declared({"type": "string"})


class Tagged(NamedTuple):
    """How the tags are written. NAME, KEY, TYPE and INDEX stand for themselves; where a tag has a line break, any white
    space is read, or none.

    opening, closing: the markers around calls. call, end: around one call; without `end` the closing marker ends it.
    parameter, close: around one value. several: one pair of markers has all calls. own_line: a value stands on a line
    of its own. types: what TYPE is where the value is text, and a grammar of what it may be where the value is JSON.
    line: the grammar of a line break. start: a text that opens calls although the opening marker is missing.
    """

    opening: str
    closing: str
    call: str
    end: str
    parameter: str
    close: str
    several: bool = False
    own_line: bool = False
    types: tuple[str, str] | None = None
    line: str = LINE
    start: str = ""

    def read(self, parser: CallParser) -> Parsing[None]:
        """The calls, up to the closing marker."""
        parser.bare |= bool(self.start) and parser.opened_by(self.start)
        while True:
            yield from parser.whitespace()
            name = (yield from holes(parser, self.call, first=True))["NAME"]
            parser.require_declared(name)
            parameters, arguments = parser.parameters_of(name), list[tuple[str, str]]()
            over = False
            while not over and not (yield from self.ended(parser)):
                key, value, over = yield from self.argument(parser, parameters)
                arguments.append((key, value))
            parser.add_call(name, arguments)
            if not self.end or (yield from parser.close()):
                return

    def ended(self, parser: CallParser) -> Parsing[bool]:
        """Read what ends a call, if it comes next."""
        yield from parser.whitespace()
        if not self.end:
            return (yield from parser.close())
        return (yield from parser.accept(self.end))

    def argument(self, parser: CallParser, parameters: Declared) -> Parsing[tuple[str, str, bool]]:
        """One parameter's name and its value in JSON, and whether the call ended with it. The tag that closes the value
        may be missing before the tag of another declared parameter, and before the end of the call."""
        found = yield from holes(parser, self.parameter)
        key, kind = found["KEY"].strip(), found.get("TYPE")
        declared = parameters.property(key)
        if self.types is not None and kind == self.types[0]:
            declared = TEXT
        heads = tuple(self.head(other) for other in parameters.names() if other != key and self.types is None)
        then = (HOLE.split(self.parameter)[0], *([self.end] if self.end else []))
        text, end = yield from unquoted(parser, declared, self.close, heads, then)
        if over := end == parser.closing:
            text, ended, rest = text.rpartition(self.end or self.closing)
            if not ended or rest.strip():
                raise NotACallError(self.close)
        if over or end in heads:
            text = text.removesuffix("\n")
        if self.own_line:
            text = text.removeprefix("\n").removesuffix("\n")
        if self.types is not None and kind != self.types[0] and is_json(text.strip()):
            return key, text.strip(), over  # the model has said that this is JSON
        return key, json_of(text, declared), over

    def head(self, key: str) -> str:
        """The tag before a parameter's value."""
        return self.parameter.replace("KEY", key)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """The calls of the writer's functions."""
        opening, closing, line = writer.mark(self.opening), writer.mark(self.closing), self.line
        if self.several:
            calls = writer.calls(lambda function: self.written(writer, function), line)
        elif self.end:
            between = f"{line} {closing} {line} {opening} {line}"
            calls = writer.calls(lambda function: self.written(writer, function), between)
        else:
            calls = writer.calls(lambda function: self.written(writer, function), f"{closing} {line} {opening}")
        return CallGrammar(self.opening, f"{line} {calls} {line} {closing}" if self.end else f"{calls} {closing}")

    def written(self, writer: GrammarWriter, function: Function) -> str:
        """One call."""

        def parameter(name: str, schema: Mapping[str, Any], id: str) -> str:
            field, own = key_of(function, name), "\n" if self.own_line else ""
            others = [self.head(other) for other in function.parameters["properties"] if other != name]
            ends = (self.close, self.closing, *(others if self.types is None else ()))
            if text := is_text(schema):
                value = text_terminal(writer, schema, id, field, ends, own + self.close)
            else:
                value = f"{writer.json(schema)} {writer.mark(own + self.close)}"
            tag, _, rest = self.head(name).partition("TYPE")
            head = self.tag(writer, tag)
            if rest and self.types is not None:
                kind = quoted(self.types[0]) if text else f"({self.types[1]})"
                head = f"{head} {kind} {self.tag(writer, rest)}"
            return f"{head} {quoted(own) if own else ''} {value} {'' if not self.line else self.line}"

        call = self.call.replace("NAME", function.name)
        head, _, rest = call.partition("INDEX")
        number = writer.rule("NUMBER", "/[1-9][0-9]{0,3}/") if rest else ""
        head = f"{self.tag(writer, head)} {number} {self.tag(writer, rest)}"
        return f"{head} {parameter_sequence(writer, function, parameter)} {writer.mark(self.end) if self.end else ''}"

    def tag(self, writer: GrammarWriter, text: str) -> str:
        """The grammar of a tag, of which every line break is `line`."""
        parts = [writer.mark(part) if part else "" for part in text.split("\n")]
        return f" {self.line} ".join(parts)


class InChannels(NamedTuple):
    """Calls beside channels that have markers of their own (Kimi K3). content: the markers around the answer, which are
    dropped. dropped: a further one."""

    calls: Tagged
    content: tuple[str, str]
    dropped: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """The block that the marker opened."""
        if parser.opened_by(self.content[0]):
            yield from parser.content_up_to(self.content[1])
        elif parser.opened_by(self.dropped):
            parser.drop()
        else:
            yield from self.calls.read(parser)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """The calls alone."""
        return self.calls.grammar(writer)


def holes(parser: CallParser, tag: str, first: bool = False) -> Parsing[dict[str, str]]:
    """Read a tag; return what stands in its holes. first: the tag begins a call."""
    parts = HOLE.split(tag)
    found: dict[str, str] = {}
    yield from (parser.begin_call(parts[0]) if first else parser.expect(parts[0]))
    at = 1
    while at < len(parts):
        hole, then = parts[at], parts[at + 1]
        if hole == "\n":
            yield from parser.whitespace()
            yield from parser.expect(then)
        elif hole == "KEY":
            found[hole] = yield from parser.until(then)
        else:
            found[hole] = yield from parser.word()
            yield from parser.expect(then)
        at += 2
    return found


def key_of(function: Function, name: str) -> str:
    """The parameter's place, for messages.

    Raises:
        ParameterError: the name can't stand between tags.
    """
    if not name or name != name.strip() or set('<>"&\n') & set(name):
        raise not_expressible(function.name, f"the name {name!r:.100}")
    return f"{function.name}.{name}"
