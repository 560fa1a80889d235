"""Calls in answers that are messages with headers.

Muse's header names the recipient. Inkling's header may name the function.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from tailrace.text.tool_parsers.call_parser import WHITE, WORD, CallParser, NotACallError, Parsing, drop_text
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter, quote_literal, write_names
from tailrace.text.tool_parsers.lookahead import match_sequences
from tailrace.text.tool_parsers.tagged import Tagged
from tailrace.text.tool_parsers.tagged_grammar import CallWriter
from tailrace.text.tool_parsers.wrapped import JsonCalls


class Addressed(NamedTuple):
    """Tagged calls in messages to tools.

    - `calls`: the body of a message to a tool.
    - `to`: the text before the recipient.
    - `body`: the marker after the recipient.
    - `start`, `end`: the markers before and after a message.
    - `others`: recipients that are no tools.
    """

    calls: Tagged
    to: str
    body: str
    start: str
    end: str
    others: tuple[str, ...]

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the calls of a message, or of a body whose header is not shown.

        A header to any other recipient is dropped up to the recipient. The rest is a marker of thoughts or content.
        """
        if parser.opened_by(self.to):
            for other in self.others:
                if (yield from parser.is_next(other + self.body)):
                    parser.drop()
                    return
            yield from parser.read_name()
            yield from parser.expect(self.body)
            yield from parser.read_whitespace()
            yield from parser.expect(self.calls.opening)
        end, parser.closing = parser.closing, self.calls.closing
        yield from self.calls.read(parser)
        if end != self.calls.closing:
            parser.closing = end
            if end is not None and (
                yield from match_sequences(parser, [(WHITE, end)])
            ):  # else white space may begin a header
                yield from parser.close()

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of calls, each in a message of its own."""
        line, body = quote_literal("\n"), writer.mark(self.body)
        opening, closing = writer.mark(self.calls.opening), writer.mark(self.calls.closing)

        def write_message(function: Function) -> str:
            call = CallWriter(self.calls, writer, function).written()
            return f"{quote_literal(function.name)} {body} {opening} {line} {call} {line} {closing}"

        between = f"{writer.mark(self.end)} {writer.mark(self.start + self.to)}"
        return CallGrammar(self.to, writer.write_calls(write_message, between))


class Headed(NamedTuple):
    """JSON calls after a header that may have a name.

    - `opening`, `closing`: the markers of a call.
    - `header`: the marker of any message.
    """

    calls: JsonCalls
    opening: str
    closing: str
    header: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read the calls of a message. Drop the header of any other message."""
        if not parser.opened_by(self.opening):
            yield from parser.read_span(WORD, drop_text)
            if not (yield from parser.accept(self.opening)):
                if (yield from parser.peek()) != "<":
                    raise NotACallError(self.opening)
                parser.drop()
                return
        yield from self.calls.read(parser)

    def grammar(self, writer: GrammarWriter) -> CallGrammar:
        """Return the grammar of the calls. The header of a further call may have the name of a function."""
        begin, end, header = map(writer.mark, (self.opening, self.closing, self.header))
        between = f"{end} {header} {write_names(writer)}? {begin}"
        return CallGrammar(self.opening, f"{writer.write_calls(partial(self.calls.written, writer), between)} {end}")
