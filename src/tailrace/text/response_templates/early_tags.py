"""Calls whose arguments are tags or lines of a response template: each is sent as it is read."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.text.response_templates.early_values import EarlyValue
from tailrace.text.response_templates.pattern import PatternError
from tailrace.text.response_templates.search import MatchReader
from tailrace.text.response_templates.values import ContentParser
from tailrace.text.tool_parsers.argument_stream import ArgumentStream
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing


class TagCallReader(NamedTuple):
    """The reader of one call, whose arguments are matches of a pattern. A text without its end ends with the region."""

    name: str
    content: ContentParser

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read and send the call."""
        assert self.content.pattern is not None
        call, matches, value = ArgumentStream(parser, self.name), MatchReader(self.content.pattern), None
        early = self.content.pattern.writes_once("key", "value")
        try:
            while True:
                value = self._send_matches(call, matches, value, parser.take(len(parser.unread)), False)
                if early and (growing := matches.read_growing("key", "value", value.size if value else 0)):
                    value = value or self._make_value(call, growing[0])
                    value.take(growing[1])
                if parser.ended:
                    break
                yield
            rest = matches.read_rest("value") if value is not None and value.sent else ""
            value = self._send_matches(call, matches, value, "", True)
            if value is not None and value.sent and not parser.cut:
                value.send(rest)
        except (NotACallError, PatternError) as error:
            call.abort()
            raise NotACallError("a value") from error
        end_call(call)

    def _send_matches(
        self, call: ArgumentStream, matches: MatchReader, value: EarlyValue | None, text: str, ended: bool
    ) -> EarlyValue | None:
        """Send the values that are complete. Return the value that is not, if a part of it was read."""
        for _, groups in matches.feed(text, ended):
            if (key := groups.get("key")) is None:
                raise NotACallError("a key")
            (value or self._make_value(call, key)).send(groups.get("value", ""))
            value = None
        return value

    def _make_value(self, call: ArgumentStream, key: str) -> EarlyValue:
        return EarlyValue(call, key, call.parser.parameters_of(self.name).get_property(key), self.content.value)


class LineCallReader(NamedTuple):
    """The reader of one call, whose arguments are lines."""

    name: str
    content: ContentParser
    line: str
    mark: str

    def read(self, parser: CallParser) -> Parsing[None]:
        """Read and send the call."""
        call = ArgumentStream(parser, self.name)
        try:
            found = self.line
            while found:
                key, found = yield from parser.up_to(self.line, self.mark)
                parser.take(len(found))
                if found == self.mark:
                    found = yield from self._read_value(call, key)
        except NotACallError:
            call.abort()
            raise
        end_call(call)

    def _read_value(self, call: ArgumentStream, key: str) -> Parsing[str]:
        """Read and send the value of a line. Return the text behind it."""
        parser, strips = call.parser, self.content.strips
        key = key.strip() if strips else key
        declared = parser.parameters_of(self.name).get_property(key)
        value = EarlyValue(call, key, declared, self.content.value, strips)
        text, found = yield from parser.up_to(self.line, sink=value.take)
        if found or not parser.cut or not value.sent:
            value.send(text.strip() if strips else text)
        parser.take(len(found))
        return found


def end_call(call: ArgumentStream) -> None:
    """End a call with its region.

    Raises:
        NotACallError: nothing was sent.
    """
    if call.keys and not call.parser.cut:
        call.end()
    else:
        call.abort()
        raise NotACallError("the end")
