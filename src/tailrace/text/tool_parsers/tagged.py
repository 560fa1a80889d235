"""Calls whose arguments stand one by one between tags, as bare text. A text is sent as it is read.

Qwen3-Coder, GLM, MiniMax M2, DeepSeek V3.2 and others write such calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from tailrace.text.tool_parsers.argument_stream import ArgumentStream, ArgumentText, choose_text_check
from tailrace.text.tool_parsers.call_object import json_in_place
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter
from tailrace.text.tool_parsers.json_escapes import replace_halves
from tailrace.text.tool_parsers.lookahead import HOLE, read_torn_tag
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.tag_sequences import Tags, tags_of
from tailrace.text.tool_parsers.tagged_grammar import CallWriter
from tailrace.text.tool_parsers.tagged_values import Form, Names, ValueReader
from tailrace.text.tool_parsers.values import is_json, json_of
from tailrace.text.tool_parsers.wrapped import JsonCalls

LINE = r'"\n"'
LINES = re.compile(r"\A\r?\n|\r?\n\Z")  # around a value on separate lines
NO_KEY = re.compile(r"[<>\n]")
CDATA = ("<![CDATA[", "]]>")
TEXT = Declared({"type": "string"})


class Tagged(NamedTuple):
    """The tags of a format.

    NAME, KEY, TYPE and INDEX are placeholders in the tags. For a line break in a tag, the parser accepts any white
    space, or none.

    - `opening`, `closing`: the markers around calls.
    - `call`, `end`: the tags around one call. Without `end`, the closing marker ends the call.
    - `parameter`, `close`: the tags around one value.
    - `several`: one pair of markers encloses all calls.
    - `own_line`: a value stands on a separate line.
    - `types`: the TYPE of a text value, and a grammar of the TYPE of a JSON value.
    - `line`: the grammar of a line break.
    - `start`: a text that opens calls although the opening marker is missing.
    - `cdata`: a value may stand in a CDATA section, as in XML.
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
    cdata: bool = False

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the calls, up to the closing marker. Models that know JSON better write JSON between the same
        markers."""
        alone = bool(self.start) and parser.opened_by(self.start)
        parser.bare |= alone
        yield from parser.read_whitespace()
        if not alone and (yield from parser.peek()) in "[{`":
            yield from JsonCalls().read(parser)
            return
        while True:
            yield from parser.read_whitespace()
            name = (yield from read_holes(parser, self.call, first=True))["NAME"]
            parser.require_declared(name)
            if (yield from json_in_place(parser, name, (self.end, self.closing))):
                if not (yield from self.ended(parser, True)):
                    raise NotACallError(self.end)
                parser.end_call()
                if not self.end or (yield from parser.close()):
                    return
                continue
            yield from self.read_arguments(parser, ArgumentStream(parser, name), alone)
            yield from parser.skip_ends(self.end)
            if not self.end or (yield from parser.close()):
                return

    @property
    def tags(self) -> Tags:
        """Return the tags as sequences."""
        return tags_of(self.opening, self.closing, self.call, self.end, self.parameter, self.close)

    def ended(self, parser: CallParser, whole: bool) -> Parsing[bool]:
        """Read the tag that ends a call, if it comes next. Return True if the call has ended.

        `whole`: the call is complete without its last tag, so the tag may be missing.
        """
        yield from parser.read_whitespace()
        if self.end and (yield from parser.accept(self.end)):
            return True
        if not self.end and (yield from parser.close()):
            return True
        if not whole:
            return False
        torn = read_torn_tag(parser, (self.end, self.closing, self.close), (self.tags.first,))
        return (
            torn
            or (parser.finished and not parser.cut)
            or (yield from parser.comes_one((self.opening, *((self.closing,) if self.end else ()))))
        )

    def read_arguments(self, parser: CallParser, call: ArgumentStream, alone: bool) -> Parsing[None]:
        """Read the parameters of a call and its end."""
        try:
            while not (yield from self.ended(parser, bool(call.keys) or call.name in parser.tools)):
                yield from self.read_argument(parser, call, alone)
        except NotACallError:
            call.abort()
            raise
        call.end()

    def read_argument(self, parser: CallParser, call: ArgumentStream, alone: bool) -> Parsing[None]:
        """Read and send one parameter."""
        found = yield from read_holes(parser, self.parameter)
        key, kind = found["KEY"].strip(), found.get("TYPE")
        if NO_KEY.search(key):  # a tag is incomplete
            raise NotACallError(key)
        parameters = parser.parameters_of(call.name)
        is_json_tag = self.types is not None and kind != self.types[0]
        declared = parameters.get_property(key) if self.types is None or is_json_tag else TEXT
        sends, may_be_other = choose_text_check(declared)
        if self.cdata and (yield from parser.accept(CDATA[0])):
            stream = ArgumentText(call, key, len, may_be_other) if sends else None
            text = yield from parser.read_until(CDATA[1] + self.close, stream and stream.take)
        else:
            tags, names = self.tags, self.list_names(parameters.names(), key, call.keys)
            sends &= not is_json_tag
            stream = ArgumentText(call, key, tags.is_certain, may_be_other, self.own_line) if sends else None
            reader = ValueReader(parser, tags, declared, names, Form(self.own_line, alone), stream)
            text, closed = yield from reader.read()
            if not closed:
                text = make_torn_pattern(self.close).sub("", text).removesuffix("\n")
            if self.own_line:
                text = LINES.sub("", text)
            if is_json_tag and is_json(text.strip()):
                call.add(key, replace_halves(text.strip()))  # the parameter's tag declares JSON
                return
        if stream is None or not stream.finish(text):
            call.add(key, json_of(text, declared))

    @staticmethod
    def list_names(names: Collection[str], key: str, before: Collection[str]) -> Names:
        """Return the declared parameters except `key`. `before`: the parameters that were read."""
        others = {name for name in names if name != key and name not in before}
        # so a text is read twice at most
        return Names(others, set(names) - others if key in names and key not in before else ())

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of calls of the writer's functions."""
        opening, closing, line = writer.mark(self.opening), writer.mark(self.closing), self.line
        if self.several:
            between = line
        elif self.end:
            between = f"{line} {closing} {line} {opening} {line}"
        else:
            between = f"{line} {opening}"
        calls = writer.write_calls(lambda function: CallWriter(self, writer, function).written(), between)
        return CallGrammar(self.opening, f"{line} {calls} {line} {closing}" if self.end else calls)


class InChannels(NamedTuple):
    """Calls beside channels that have markers of their own (Kimi K3).

    - `content`: the markers around the answer. They are dropped.
    - `dropped`: a further marker that is dropped.
    """

    calls: Tagged
    content: tuple[str, str]
    dropped: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the block that the marker opened."""
        if parser.opened_by(self.content[0]):
            yield from parser.content_up_to(self.content[1])
        elif parser.opened_by(self.dropped):
            parser.drop()
        else:
            yield from self.calls.read(parser)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of the calls alone."""
        return self.calls.grammar(writer)


@lru_cache(maxsize=64)
def make_torn_pattern(tag: str) -> re.Pattern[str]:
    """Return a pattern of the tag at the end of a text, with a missing, wrong or additional character."""
    ways = [re.escape(tag[1:]), *(f"{re.escape(tag[:i])}.{{0,2}}{re.escape(tag[i + 1 :])}" for i in range(1, len(tag)))]
    return re.compile(rf"(?:{'|'.join(ways)})\s*\Z", re.DOTALL)


def read_holes(parser: CallParser, tag: str, first: bool = False) -> Parsing[dict[str, str]]:
    """Read a tag. Return the text for each placeholder. `first`: the tag begins a call."""
    parts = HOLE.split(tag)
    found: dict[str, str] = {}
    yield from (parser.begin_call(parts[0]) if first else parser.expect(parts[0]))
    at = 1
    while at < len(parts):
        hole, then = parts[at], parts[at + 1]
        if hole == "\n":
            yield from parser.read_whitespace()
            yield from parser.expect(then)
        elif hole == "KEY":
            found[hole] = yield from parser.read_until(then)
        else:
            found[hole] = yield from parser.read_name()
            yield from parser.expect(then)
        at += 2
    return found
