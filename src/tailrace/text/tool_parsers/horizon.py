"""K2 Horizon's calls: arguments between tags, with or without their types, or one JSON object.

The chat template chooses one form for all calls of an answer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tailrace.text.tool_parsers.call_object import json_call
from tailrace.text.tool_parsers.call_parser import CallParser, Parsing
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter
from tailrace.text.tool_parsers.tagged import Tagged

FORM = re.compile(
    r"(?P<json>\s*(?:<ifm\|tool_call>)?\s*\{)|.*?(?:(?P<typed><ifm\|arg_type>)|<ifm\|arg_value>)", re.DOTALL
)


class Horizon(NamedTuple):
    """The forms of K2 Horizon's calls.

    - `plain`, `typed`: the tags without and with types.
    - `begin`: the marker of one call.
    """

    plain: Tagged
    typed: Tagged
    begin: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the calls, up to the closing marker."""
        while not (found := FORM.match(parser.text, parser.at)) and self.plain.closing not in parser.unread:
            yield from parser.wait_for_text()
        if found is None or found["json"] is None:
            typed = found is not None and found["typed"] is not None
            yield from (self.typed if typed else self.plain).read(parser)
            return
        while True:
            yield from parser.read_whitespace()
            yield from parser.begin_call(self.begin)
            yield from parser.read_whitespace()
            yield from parser.expect("{")
            yield from json_call(parser)
            yield from parser.read_whitespace()
            yield from parser.expect(self.plain.end)
            if (yield from parser.close()):
                return

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of calls with tags, without types."""
        return self.plain.grammar(writer)
