"""Calls in a section, each between two markers. The name stands outside of the JSON. DeepSeek and Kimi write them."""

from __future__ import annotations

import re
from typing import NamedTuple

from tailrace.text.tool_parsers.call_object import call_or_arguments, skip_braces
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quote_literal

NUMBERED = re.compile(r"(?:functions\.)?(?P<name>.+):\d+")
FENCE = ("```json", "```")


class Sectioned(NamedTuple):
    """The markers of a section and its calls.

    - `opening`, `closing`: the markers of the section. They may be missing.
    - `begin`: the marker before a call's name.
    - `separator`, `end`: the markers before and after a call's arguments.
    - `numbered`: the name is written as functions.NAME:NUMBER, which is also the call's id. The model expects this id
      again with the call's result.
    - `fence`: the arguments may stand in a JSON code block. Then the word "function" replaces the name, and the name
      follows the separator.
    - `name`: the marker between a call's id and its name. The model makes the id.
    """

    opening: str
    closing: str
    begin: str
    separator: str
    end: str
    numbered: bool = False
    fence: bool = False
    name: str = ""

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the calls, up to the closing marker."""
        while True:
            yield from parser.read_whitespace()
            yield from parser.begin_call(self.begin)
            yield from parser.read_whitespace()
            id = yield from parser.read_name()
            yield from parser.read_whitespace()
            made = id
            if self.name:
                yield from parser.expect(self.name)
                id = yield from parser.read_name()
            yield from parser.expect(self.separator)
            yield from parser.read_whitespace()
            fenced = self.fence and (yield from parser.peek()) not in "{`"
            if fenced:
                id = yield from self.name_behind(parser, id)
            numbered = NUMBERED.fullmatch(id) if self.numbered else None
            name = numbered["name"] if numbered else id.removeprefix("functions.") if self.numbered else id
            made = made if numbered or self.name else None
            yield from call_or_arguments(parser, name, made, (self.end, FENCE[1]))
            yield from skip_braces(parser)
            yield from parser.read_whitespace()
            if fenced:
                yield from parser.expect(FENCE[1])
                yield from parser.read_whitespace()
            yield from parser.expect(self.end)
            parser.end_call()
            yield from parser.skip_ends(self.end)
            if (yield from parser.close()):
                return

    def name_behind(self, parser: CallParser, kind: str) -> Parsing[str]:
        """Read the name, up to the arguments in their code block."""
        if kind != "function":
            raise NotACallError(kind)
        name = yield from parser.read_name()
        yield from parser.read_whitespace()
        yield from parser.expect(FENCE[0])
        yield from parser.read_whitespace()
        return name

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of a section. If the model's template uses a JSON code block, the grammar does too.

        The model chooses the numbers, which continue from earlier calls.
        """
        begin, separator, end, closing = map(writer.mark, (self.begin, self.separator, self.end, self.closing))
        fenced = self.fence and writer.model_writes(FENCE[0])
        number = writer.rule("NUMBER", "/[0-9]{1,4}/") if self.numbered else ""
        made = writer.rule("ID", "/[a-z0-9]{10}/") if self.name else ""

        def write_section_call(name: str, arguments: str) -> str:
            if fenced:
                return rf'"function" {separator} {quote_literal(name)} "\n```json\n" {arguments} "\n```"'
            head = f"{quote_literal(f'functions.{name}:')} {number}" if self.numbered else quote_literal(name)
            if self.name:
                head = f"{made} {writer.mark(self.name)} {head}"
            return f"{head} {separator} {arguments}"

        between = quote_literal("\n") if fenced else '""'
        calls = writer.write_calls(
            lambda f: f"{begin} {write_section_call(f.name, writer.arguments(f))} {end}", between
        )
        return CallGrammar(self.opening, f"{calls} {closing}")
