"""Values inside a call. JSON values are passed on as written; only brackets and strings are followed. Bare text is
turned into JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing, Sink, in_json
from tailrace.text.tool_parsers.python_values import literal
from tailrace.text.tool_parsers.resolve import Declared

INSIDE = {quote: re.compile(rf"[^{quote}\\]+") for quote in ("'", '"')}  # of a string
PLAIN = re.compile(r'[^"<\\]+')
SCALAR = re.compile(r"[A-Za-z0-9_.+-]*")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
KIND_BY_START = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
CONTROL = re.compile(r"[\x00-\x1f]")
ESCAPABLE = '"\\/bfnrtu'  # what may follow a backslash in JSON
JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
MAX_NESTING = 500  # of brackets; readers of JSON give up at about 1,000, less what else is on the stack
INTEGER = re.compile(r"-?[0-9]+")


class Syntax(NamedTuple):
    """The syntax of a language's values: its quotes, its brackets, and what else may stand between brackets."""

    quotes: str
    brackets: Mapping[str, str]
    plain: re.Pattern[str]


JSON = Syntax('"', {"{": "}", "[": "]"}, re.compile(r"[\sA-Za-z0-9_.+,:-]+"))
PYTHON = Syntax("'\"", {"{": "}", "[": "]", "(": ")"}, re.compile(r"[^\[\](){}'\"]+"))


def nested(parser: CallParser, sink: Sink, syntax: Syntax, inside: Iterable[str] = ()) -> Parsing[None]:
    """Pass on a string, or brackets and everything in them, as they come. inside: what closes the brackets that are
    already open.

    Raises:
        NotACallError: a character that can't stand there, or a bracket deeper than MAX_NESTING. The text before it was
            passed on.
    """
    closings = list(inside)
    while True:
        char = yield from parser.peek()
        if char in syntax.quotes:
            yield from json_string(parser, sink) if syntax is JSON else python_string(parser, sink)
        elif char in syntax.brackets and len(closings) < MAX_NESTING:
            closings.append(syntax.brackets[char])
            sink(parser.take(1))
        elif closings and char == closings[-1]:
            closings.pop()
            sink(parser.take(1))
        elif closings and (run := syntax.plain.match(parser.text, parser.at)):
            sink(parser.take(len(run[0])))
        else:
            raise NotACallError(char)
        if not closings:
            return


def python_string(parser: CallParser, sink: Sink) -> Parsing[None]:
    """Pass on a string in its quotes, as it comes."""
    quote = parser.take(1)
    sink(quote)
    while (char := (yield from parser.peek())) != quote:
        if char == "\\":
            sink(parser.take(1))
            yield from parser.peek()
            sink(parser.take(1))
        elif run := INSIDE[quote].match(parser.text, parser.at):
            sink(parser.take(len(run[0])))
    sink(parser.take(1))


def json_string(parser: CallParser, sink: Sink) -> Parsing[None]:
    """Pass on a JSON string as it comes; what JSON doesn't allow in a string is written as JSON writes it: control
    characters, and a backslash that begins no escape."""
    sink(parser.take(1))
    while (char := (yield from parser.peek())) != '"':
        if char == "\\":
            sink(parser.take(1))
            if (yield from parser.peek()) not in ESCAPABLE:
                sink("\\")
            elif parser.text[parser.at] in '"\\':
                sink(parser.take(1))
        elif run := INSIDE['"'].match(parser.text, parser.at):
            sink(CONTROL.sub(escape, parser.take(len(run[0]))))
    sink(parser.take(1))


def escape(found: re.Match[str]) -> str:
    """A control character as JSON writes it."""
    return in_json(found[0])[1:-1]


def json_value(parser: CallParser, sink: Sink) -> Parsing[None]:
    """Pass on any JSON value, as it comes; raise NotACallError if there is none."""
    char = yield from parser.peek()
    if char in JSON.quotes or char in JSON.brackets:
        yield from nested(parser, sink, JSON)
    elif SCALAR.fullmatch(char):
        yield from parser.span(SCALAR, sink)
    else:
        raise NotACallError(char)


def unquoted(
    parser: CallParser, declared: Declared, marker: str, stops: tuple[str, ...], then: tuple[str, ...]
) -> Parsing[tuple[str, str]]:
    """Read an unquoted value up to what ends it: the marker, which is read too, or the end of the block or one of
    `stops`, which are not. Return the value and what ended it.

    If the value may be JSON and begins like JSON, a marker inside one of its strings belongs to the value. If it may be
    text as well, a lone quote is possible: then a marker ends the value wherever the call goes on after the marker.

    Args:
        then: what may come after the marker and white space, besides the end of the block.
    """
    kinds, parts = declared.kinds(), list[str]()
    closing = () if parser.closing is None else (parser.closing,)
    yield from parser.span(WHITE, parts.append)
    if (kinds and kinds <= {"string", "null"}) or (yield from parser.peek()) not in '"[{':
        text, found = yield from parser.up_to(marker, *closing, *stops)
        if found == marker:
            parser.take(len(marker))
        return "".join(parts) + text, found
    ends = () if kinds and "string" not in kinds else (*then, *closing)
    first = {mark[0] for mark in (marker, *closing, *stops)}
    inside = False  # of a string
    while True:
        char = yield from parser.peek()
        if char in first and (not inside or (yield from followed(parser, marker, ends))):
            if (yield from parser.accept(marker)):
                return "".join(parts), marker
            for mark in (*closing, *stops):
                if (yield from parser.comes(mark)):
                    return "".join(parts), mark
        if char == "\\" and inside:
            parts.append(parser.take(1))
            if (yield from parser.peek()) in '"\\':
                parts.append(parser.take(1))
            continue
        inside ^= char == '"'
        run = PLAIN.match(parser.text, parser.at)
        parts.append(parser.take(len(run[0]) if run else 1))


def followed(parser: CallParser, marker: str, then: tuple[str, ...]) -> Parsing[bool]:
    """True if the marker comes next, and after it (and white space) one of these. Reads nothing."""
    while True:
        there = parser.text[parser.at : parser.at + len(marker)]
        if not marker.startswith(there):
            return False
        if there == marker:
            white = WHITE.match(parser.text, parser.at + len(marker))
            behind = white.end() if white else len(parser.text)
            if parser.text.startswith(then, behind):
                return True
            if not any(tag.startswith(parser.text[behind : behind + len(tag)]) for tag in then):
                return False
        yield


def json_text(parser: CallParser) -> Parsing[str]:
    """The value of a JSON string; raise NotACallError if no string comes next."""
    parts: list[str] = []
    if (yield from parser.peek()) != '"':
        raise NotACallError("a string")
    yield from json_string(parser, parts.append)
    try:
        return msgspec.json.decode("".join(parts), type=str)
    except msgspec.DecodeError as error:
        raise NotACallError(str(error)) from None


def json_of(text: str, declared: Declared) -> str:
    """An unquoted value as JSON: what is declared, if the text can be that, else a string."""
    kinds, values = declared.kinds(), declared.values()
    stripped = text.strip()
    bare = PYTHON_WORDS.get(stripped, stripped)
    if kinds and kinds <= {"string", "null"}:
        return "null" if bare == "null" and "null" in kinds and text not in (values or ()) else in_json(text)
    if kinds == {"boolean"} and bare.lower() in ("true", "false"):
        return bare.lower()
    if kinds & {"object", "array"} and bare[:1] in ("{", "[", "(") and not is_json(bare):
        bare = literal(bare) or bare
    if not is_json(bare) and bare[:1] in ('"', "[", "{"):
        bare = JSON_STRING.sub(lambda found: CONTROL.sub(escape, found[0]), bare)
    if not is_json(bare):
        return in_json(text)
    if values is not None and text in values:  # the text, unless the value is listed too
        return bare if any(in_json(value) == bare for value in values if not isinstance(value, str)) else in_json(text)
    return in_json(text) if "string" in kinds and not fits(bare, kinds) else bare


def fits(text: str, kinds: set[str]) -> bool:
    """True if the JSON text has one of these types."""
    kind = KIND_BY_START.get(text[0], "number")
    if kind == "number" and "number" not in kinds and INTEGER.fullmatch(text):
        kind = "integer"
    return kind in kinds


def is_json(text: str) -> bool:
    """True if the text is JSON as it is written, with numbers of any size."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(name)
