"""A strict reader of JSON, in the dialects that response templates have."""

from __future__ import annotations

import re
from typing import NamedTuple

from tailrace.text.tool_parsers.call_parser import (
    CallParser,
    NotACallError,
    Parsing,
    Sink,
    drop_text,
    in_json,
    write_object,
)
from tailrace.text.tool_parsers.json_escapes import escape_text

MAX_DEPTH = 100  # of lists and objects; transformers reads as many in a list of calls
WHITE = re.compile(r"[ \t\n\r]*")
WORD = re.compile(r"\w*")
ATOM = re.compile(r"[\w.+-]*", re.ASCII)
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
CALLED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*")
INSIDE = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
LOW = re.compile(r"[dD][c-fC-F][0-9a-fA-F]{2}")
HEX = re.compile(r"[0-9a-fA-F]{4}")
CONSTANTS = {"true": "true", "false": "false", "null": "null"}
PYTHON_CONSTANTS = {**CONSTANTS, "True": "true", "False": "false", "None": "null"}
MAX_INTEGER = 2**53 - 1  # in a list of calls as Python writes them
SURROGATE = re.compile("[\ud800-\udfff]")
UNWRITTEN = re.compile("[\n\r\ud800-\udfff]")  # not in a string as Python writes it


class LaterError(NotACallError):
    """An error: the whole region decides about the next arguments. keys: the arguments that were sent."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.keys: list[str] = []


class Dialect(NamedTuple):
    """A way to write JSON.

    - quotes: the characters around a string. escapable: what may stand behind a backslash, besides b, f, n, r, t and u.
    - marks: the texts around a string without escapes. A string between quotes then waits for its end.
    - bare: keys may be words without quotes.
    - python: calls as Python writes them. Numbers have limits, and a key comes once.
    """

    quotes: str = '"'
    escapable: str = '"\\/'
    marks: tuple[str, str] | None = None
    bare: bool = False
    python: bool = False


PYTHON = Dialect("\"'", "\"'\\/", python=True)


class JsonReader:
    """A reader of JSON that writes it again, piece by piece.

    Attributes: closers: what closes the objects, the lists and the string that were begun in the written text.
    """

    def __init__(self, parser: CallParser, dialect: Dialect) -> None:
        self.parser, self.dialect, self.closers = parser, dialect, ""

    def read_mark(self) -> Parsing[str]:
        """Return the next character that is no white space. Read the white space."""
        yield from self.parser.read_span(WHITE, drop_text)
        return (yield from self.parser.peek())

    def expect(self, mark: str) -> Parsing[None]:
        """Read white space and the mark."""
        yield from self.parser.read_span(WHITE, drop_text)
        yield from self.parser.expect(mark)

    def read_items(self, closing: str) -> Parsing[bool]:
        """Read the comma before a further item, or the bracket that closes a list. Return True for a comma."""
        if (yield from self.read_mark()) == closing:
            self.parser.take(1)
            return False
        yield from self.parser.expect(",")
        return True

    def close(self, closing: str) -> Parsing[bool]:
        """Read the bracket that closes an empty list or object, if it comes next."""
        yield from self.read_mark()
        return (yield from self.parser.accept(closing))

    def is_string(self) -> Parsing[bool]:
        """Return whether a string comes next."""
        if (yield from self.read_mark()) in self.dialect.quotes:
            return True
        return self.dialect.marks is not None and (yield from self.parser.is_next(self.dialect.marks[0]))

    def read_string(self, sink: Sink = drop_text) -> Parsing[str]:
        """Read a string. `sink`: it gets the text as it is read, if that is certain."""
        parser, marks = self.parser, self.dialect.marks
        if marks is not None and (yield from parser.accept(marks[0])):
            return (yield from parser.read_until(marks[1], sink))
        if (quote := (yield from parser.peek())) not in self.dialect.quotes:
            raise NotACallError(quote)
        parser.take(1)
        parts: list[str] = []

        def add_plain(text: str) -> None:
            if self.dialect.python and UNWRITTEN.search(text):
                raise NotACallError(text)
            add_text(text)

        def add_text(text: str) -> None:
            parts.append(text)
            if marks is None:
                sink(text)

        while True:
            yield from parser.read_span(INSIDE[quote], add_plain)
            if (yield from parser.peek()) == quote:
                parser.take(1)
                break
            parser.take(1)
            add_text((yield from self.read_escape()))
        text = "".join(parts)
        if marks is not None and marks[0] in text:  # transformers takes the mark for the beginning of a string
            raise LaterError(marks[0])
        return text

    def read_escape(self) -> Parsing[str]:
        """Read what stands behind a backslash. Return its text. Half of a surrogate pair is U+FFFD."""
        parser = self.parser
        char = yield from parser.peek()
        parser.take(1)
        if char != "u":
            if char not in ESCAPES and char not in self.dialect.escapable:
                raise NotACallError(char)
            return ESCAPES.get(char, char)
        code = yield from self.read_code()
        if 0xD800 <= code < 0xDC00 and (yield from parser.is_next("\\u")):
            while len(parser.unread) < 6 and not parser.ended:
                yield
            if LOW.match(parser.text, parser.at + 2):
                parser.take(2)
                return chr(0x10000 + ((code - 0xD800) << 10) + (yield from self.read_code()) - 0xDC00)
        if 0xD800 <= code < 0xE000:
            if self.dialect.python:
                raise NotACallError("half of a surrogate pair")
            return "\ufffd"
        return chr(code)

    def read_code(self) -> Parsing[int]:
        """Read four hexadecimal digits."""
        while len(self.parser.unread) < 4:
            yield from self.parser.wait_for_text()
        if not HEX.match(self.parser.text, self.parser.at):
            raise NotACallError("a code")
        return int(self.parser.take(4), 16)

    def read_key(self) -> Parsing[str]:
        """Read the key of an object and its colon."""
        if (yield from self.is_string()):
            key = yield from self.read_string()
        elif self.dialect.bare:
            parts: list[str] = []
            yield from self.parser.read_span(WORD, parts.append)
            if not (key := "".join(parts)):
                raise NotACallError("a key")
        else:
            raise NotACallError("a key")
        yield from self.expect(":")
        return key

    def read_value(self, sink: Sink, depth: int = 1) -> Parsing[None]:
        """Read a value. `sink`: it gets the value as JSON."""
        if (yield from self.is_string()):
            yield from self._write_string(sink)
        elif (char := (yield from self.parser.peek())) in "[{":
            if depth > MAX_DEPTH:
                raise NotACallError("deeper")
            self.parser.take(1)
            yield from self._write_items(char, sink, depth)
        else:
            sink((yield from self.read_atom()))

    def _write_string(self, sink: Sink) -> Parsing[None]:
        begun = False

        def write_text(text: str) -> None:
            nonlocal begun
            if not begun:
                self.closers = '"' + self.closers
            sink(("" if begun else '"') + escape_text(SURROGATE.sub("\ufffd", text)))
            begun = True

        text = yield from self.read_string(write_text)
        sink('"' if begun else in_json(SURROGATE.sub("\ufffd", text)))
        self.closers = self.closers[begun:]

    def _write_items(self, opening: str, sink: Sink, depth: int) -> Parsing[None]:
        closing, keys, pending = "}" if opening == "{" else "]", set[str](), ""

        def write_item(text: str) -> None:
            nonlocal pending
            text, pending = pending + text, ""
            sink(text)

        sink(opening)
        self.closers = closing + self.closers
        more = not (yield from self.close(closing))
        while more:
            if opening == "{":
                key = yield from self.read_key()
                if key in keys and self.dialect.python:
                    raise NotACallError(key)
                keys.add(key)
                pending += f"{in_json(SURROGATE.sub(chr(0xFFFD), key))}: "
            yield from self.read_value(write_item, depth + 1)
            more, pending = (yield from self.read_items(closing)), ", "
        self.closers = self.closers[1:]
        sink(closing)

    def read_atom(self) -> Parsing[str]:
        """Read a number or a constant. Return it as JSON."""
        parts: list[str] = []
        yield from self.parser.read_span(ATOM, parts.append)
        text = "".join(parts)
        if (constant := (PYTHON_CONSTANTS if self.dialect.python else CONSTANTS).get(text)) is not None:
            return constant
        if (number := NUMBER.fullmatch(text)) is None:
            raise NotACallError(text)
        if self.dialect.python and (
            float(text) in (float("inf"), float("-inf"))
            or (not number[1] and not number[2] and (len(text) > 17 or abs(int(text)) > MAX_INTEGER))
        ):
            raise NotACallError(text)
        return text


def read_python_name(reader: JsonReader) -> Parsing[str]:
    """Read the name of a function or of an argument."""
    parts: list[str] = []
    yield from reader.parser.read_span(ATOM, parts.append)
    if not CALLED.fullmatch(name := "".join(parts)):
        raise NotACallError(name)
    return name


def read_python_calls(parser: CallParser) -> Parsing[str]:
    """Read a list of calls as Python writes it. Return it as JSON."""
    reader, calls = JsonReader(parser, PYTHON), list[str]()
    yield from reader.expect("[")
    more = not (yield from reader.close("]"))
    while more:
        yield from reader.read_mark()
        name, pairs = (yield from read_python_name(reader)), dict[str, str]()
        yield from reader.expect("(")
        again = not (yield from reader.close(")"))
        while again:
            parts: list[str] = []
            yield from reader.read_mark()
            key = yield from read_python_name(reader)
            yield from reader.expect("=")
            yield from reader.read_value(parts.append)
            if key in pairs:
                raise NotACallError(key)
            pairs[key] = "".join(parts)
            again = yield from reader.read_items(")")
        calls.append(f'{{"name": {in_json(name)}, "arguments": {write_object(pairs.items())}}}')
        more = yield from reader.read_items("]")
    return f"[{', '.join(calls)}]"


def convert_python_calls(text: str) -> str:
    """Return a list of calls as Python writes it as JSON.

    Raises:
        ValueError: the text is no such list.
    """
    found: list[str] = []

    def read(parser: CallParser) -> Parsing[None]:
        found.append((yield from read_python_calls(parser)))

    parser = CallParser(read, "", None, {}, 0, bare=False)
    parser.feed(text, ended=True)
    if not found or parser.unread.strip(" \t\n\r"):
        raise ValueError("no list of calls")
    return found[0]
