"""JSON strings inside a call, in any quotes, passed on as valid JSON. See json_repair.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, Sink, partial_marker
from tailrace.text.tool_parsers.json_escapes import UNSAFE, escape_match, escape_sequence
from tailrace.text.tool_parsers.json_quotes import (
    CLOSINGS,
    KEY,
    OPENINGS,
    PARTIAL_KEY,
    PARTIAL_SEMICOLON,
    QUOTES,
    SEMICOLON,
    StringPlace,
    Text,
    Verdict,
    judge_quote,
    match_verdict,
)

NAME = re.compile(r"[\w$.-]*")  # of a key without quotes
LOOKAHEAD = 256  # characters after a value; longer than any format's markers
WHITE = " \t\r\n"
A_KEY = StringPlace(key=True)


def json_text(parser: CallParser, place: StringPlace = A_KEY) -> Parsing[str]:
    """Read a quoted string. Return its value. Raise NotACallError if no string comes next."""
    parts: list[str] = []
    if (yield from parser.peek()) not in OPENINGS:
        raise NotACallError("a string")
    yield from json_string(parser, parts.append, place)
    try:
        return msgspec.json.decode("".join(parts), type=str)
    except msgspec.DecodeError as error:
        raise NotACallError(str(error)) from None


def json_name(parser: CallParser, place: StringPlace = A_KEY) -> Parsing[str]:
    """Read a key of an object, quoted or not. Return the key."""
    if (yield from parser.peek()) in OPENINGS:
        return (yield from json_text(parser, place))
    parts: list[str] = []
    yield from parser.read_span(NAME, parts.append)
    if not (name := "".join(parts)):
        raise NotACallError("a key")
    return name


def json_string(parser: CallParser, sink: Sink, place: StringPlace) -> Parsing[None]:
    """Pass on a string. A quote closes the string if the following text can follow a string there.
    Any other quote is text. In a key, the first quote closes the string.

    Raises:
        NotACallError: the string does not end, or its end is not certain.
    """
    yield from StringReader(parser, sink, place).read()


class StringReader:
    """A reader of one string. See `json_string`.

    If a marker of the block comes inside the text, the following text is held until the next quote. If this quote can't
    close the string, the quote before the marker is missing. Then the held text is read again.
    """

    def __init__(self, parser: CallParser, sink: Sink, place: StringPlace) -> None:
        self.parser, self._sink, self.place = parser, sink, place
        self.text = Text()
        self._held: int | None = None  # Where the held text begins.
        self._out: list[str] = []  # The held text as JSON.

    def read(self) -> Parsing[None]:
        """Read the string."""
        self._sink('"')
        try:
            yield from self._open_string()
            while not (yield from self._read_string_part()):
                pass
        except NotACallError:
            if self._held is None:
                raise
            if self.parser.cut:
                self._release_held()
                raise
            self._end_before_mark()
        self._sink('"')

    def _open_string(self) -> Parsing[None]:
        """Read the opening quote, or three opening quotes."""
        parser = self.parser
        quote = parser.take(1)
        self.closings, self.width, self.text = CLOSINGS[quote], 1, Text()
        if quote in QUOTES and (yield from parser.peek()) == quote and (yield from parser.is_next(quote * 2)):
            self.width = 3
            parser.take(2)

    def _read_string_part(self) -> Parsing[bool]:
        """Read a part of the text. Return True if the string has ended."""
        char = yield from self.parser.peek()
        if char == "\\":
            yield from escape_sequence(self.parser, self._put_text, self.closings)
            return False
        return (yield from self._read_quote(char) if char in self.closings else self._read_plain())

    def _put_text(self, text: str) -> None:
        """Pass on or hold a part of the text, as JSON."""
        if self._held is None:
            self._sink(text)
        else:
            self._out.append(text)

    def _take_text(self, length: int) -> None:
        """Read available text that needs no interpretation."""
        text = self.parser.take(length)
        if self._held is None:
            self.text.add(text)
        self._put_text(UNSAFE.sub(escape_match, text))

    def _release_held(self) -> None:
        """Pass on the held text as text of the string."""
        if self._held is not None:
            self.text.add(self.parser.read_from(self._held))
            self._held, out = None, "".join(self._out)
            self._out.clear()
            self._sink(out)

    def _end_before_mark(self) -> None:
        """End the string before the held text."""
        assert self._held is not None
        self.parser.give_back_from(self._held)
        self._held = None
        self._out.clear()
        self._require_certain()

    def _require_certain(self) -> None:
        """Raise NotACallError unless a string without its closing quote surely ends here."""
        if self.place.key or not self.text.may_lack_quote:
            raise NotACallError("a quote")

    def _read_quote(self, quote: str) -> Parsing[bool]:
        """Read a quote, which may close the string. Return True if the string has ended."""
        parser = self.parser
        if not (yield from parser.is_next(quote * self.width)):
            self._take_text(1)
            return False
        verdict = yield from self._decide_quote(self.width)
        if verdict == "text":
            if self._held is not None:
                self._end_before_mark()
                return True
            if self.width == 1:
                self.text.add_quote(quote, parser.text[parser.at + 1 : parser.at + 2])
            self._take_text(1)
            return False
        self._release_held()
        if not self.text.is_certain:
            raise NotACallError("a quote")
        parser.take(self.width)
        if verdict == "end":
            return True
        yield from parser.read_whitespace()
        yield from parser.accept("+")
        yield from parser.read_whitespace()
        yield from self._open_string()
        return False

    def _decide_quote(self, behind: int) -> Parsing[Verdict]:
        """Decide about a quote that ends `behind` characters ahead. Read nothing."""
        parser = self.parser
        self.text.held = self._held is not None
        if self.place.key and not self.text.held:
            return "end"
        while True:
            rest = parser.text[parser.at + behind : parser.at + behind + LOOKAHEAD]
            verdict = judge_quote(rest, self.place, self.text)
            if verdict is not None or parser.ended or len(rest) == LOOKAHEAD:
                return verdict or "end"
            yield from parser.wait_for_text()

    def _read_plain(self) -> Parsing[bool]:
        """Read text up to a quote or a backslash. Return True if the string ends before it."""
        parser = self.parser
        found = make_plain_pattern(self.closings).match(parser.text, parser.at)
        end = found.end() if found else parser.at + 1
        if self._held is not None:
            self._take_text(end - parser.at)
            return False
        if (mark := self._first_mark(end)) is not None:
            self._take_text(mark - parser.at)
            self._held = parser.mark()
            return False
        begun = 0 if parser.ended else self._begun_mark()
        if end > len(parser.text) - begun or (end == len(parser.text) and not parser.ended):
            yield from self._but_tail(len(parser.text) - begun)
            return False
        if end < len(parser.text):
            return (yield from self._before_quote(end))
        place = self._before_closers(end)
        brackets = "".join(parser.text[place:end].split())
        self._take_text(place - parser.at)
        if parser.closes and not self.place.marked and 0 < len(self.place.closers) == len(brackets):
            self._require_certain()
            return True
        self._take_text(end - place)
        return False

    def _first_mark(self, end: int) -> int | None:
        """Return where the text ends before the first marker that begins before `end` and may end the text."""
        text, at = self.parser.text, self.parser.at
        for mark in sorted(places(text, at, end, self.place.ends)):
            place = self._before_closers(mark)
            if self.text.torn % 2 == 0 or text[place:mark].strip():
                return place
        return None

    def _begun_mark(self) -> int:
        """Return the number of characters at the end of the available text that may begin a marker."""
        unread = self.parser.text[max(self.parser.at, len(self.parser.text) - LOOKAHEAD) :]
        return max((partial_marker(unread, mark) for mark in self.place.ends), default=0)

    def _before_closers(self, end: int) -> int:
        """Return the place before the white space and closing brackets that precede `end`."""
        text, count = self.parser.text, len(self.place.closers)
        start = max(self.parser.at, end - LOOKAHEAD)
        while end > start and (text[end - 1] in WHITE or (count and text[end - 1] in "}])")):
            count -= text[end - 1] not in WHITE
            end -= 1
        return end

    def _but_tail(self, end: int) -> Parsing[None]:
        """Read the text before `end` except its tail, which may precede a marker or a key."""
        parser = self.parser
        text = parser.text[max(parser.at, end - LOOKAHEAD) : end]
        rest = text.rstrip(WHITE + "}])")
        rest = rest.removesuffix(",") if not text[len(rest) :].strip(WHITE) else rest
        if not (length := end - len(text) + len(rest) - parser.at):
            yield from parser.wait_for_text()
        self._take_text(length)

    def _before_quote(self, end: int) -> Parsing[bool]:
        """Read text up to a quote or a backslash. Return True if the closing quote is missing before a comma and a
        key."""
        parser = self.parser
        text = parser.text[parser.at : end]
        body = text.rstrip(WHITE)
        tail = len(text) - len(body) + 1 if body.endswith(",") else 0
        member = self.width == 1 and self.place.in_object and not self.place.key and parser.text[end] != "\\"
        if not member or tail > LOOKAHEAD:
            tail = 0
        self._take_text(len(text) - tail)
        if tail and not (self.text.torn and self.text.depth) and (yield from self._missing_before(tail)):
            self._require_certain()
            return True
        self._take_text(tail)
        return False

    def _missing_before(self, behind: int) -> Parsing[bool]:
        """Return True if a key and its colon after `behind` characters show a missing quote. Read nothing."""
        parser = self.parser
        if (yield from self._decide_quote(behind + 1)) != "text":
            return False
        while True:
            rest = parser.text[parser.at + behind : parser.at + behind + LOOKAHEAD]
            found = match_verdict(rest, KEY, PARTIAL_KEY, "end", "text")
            if found is not None or parser.ended or len(rest) == LOOKAHEAD:
                return found == "end"
            yield from parser.wait_for_text()


@lru_cache(maxsize=16)
def make_plain_pattern(closings: str) -> re.Pattern[str]:
    """Return a pattern of string text, up to a backslash or a quote that may close the string."""
    return re.compile(rf"[^{closings}\\]+")


def places(text: str, begin: int, end: int, marks: Sequence[str]) -> Iterator[int]:
    """Yield where the marks begin, from `begin` up to `end`."""
    for mark in marks:
        at = begin - 1
        while (at := text.find(mark, at + 1, end + len(mark) - 1)) >= 0:
            yield at


def is_separator(parser: CallParser, at: int) -> Parsing[bool]:
    """Return True if the semicolon at `at`, at most LOOKAHEAD characters ahead, separates members. Read nothing."""
    behind = at - parser.at
    while True:
        text = parser.text[parser.at + behind : parser.at + behind + LOOKAHEAD]
        found = match_verdict(text, SEMICOLON, PARTIAL_SEMICOLON, "end", "text")
        if found is not None or parser.ended or len(text) == LOOKAHEAD:
            return found == "end"
        yield from parser.wait_for_text()
