"""Values inside a call. JSON values are passed on as written. Bare text becomes JSON.

In a JSON value, only brackets and strings are followed.
"""

from __future__ import annotations

import json
import re

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, Sink, in_json
from tailrace.text.tool_parsers.json_escapes import escape_match, replace_halves
from tailrace.text.tool_parsers.json_quotes import QUOTES
from tailrace.text.tool_parsers.json_repair import MAX_NESTING
from tailrace.text.tool_parsers.python_values import convert_literal
from tailrace.text.tool_parsers.resolve import Declared

INSIDE = {quote: re.compile(rf"[^{quote}\\]+") for quote in QUOTES}  # of a string
UNQUOTED = re.compile(r"[^\[\](){}'\"]+")
BETWEEN = re.compile(r"[^\[\](){}'\"<]+")  # text between calls
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
KIND_BY_START = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
CONTROL = re.compile(r"[\x00-\x1f]")
JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
INTEGER = re.compile(r"-?[0-9]+")
BRACKETS = {"{": "}", "[": "]", "(": ")"}


def read_brackets(parser: CallParser, sink: Sink, inside: str) -> Parsing[None]:
    """Pass on Python's brackets and everything in them, as they arrive.

    Args:
        inside: the closing brackets of brackets that are open already. At the end of the block they may be missing.

    Raises:
        NotACallError: an unexpected character, or a bracket deeper than MAX_NESTING. The text before it was passed on.
    """
    closings = list(inside)
    while True:
        char = yield from parser.peek()
        if char in QUOTES:
            yield from python_string(parser, sink)
        elif char in BRACKETS and len(closings) < MAX_NESTING:
            closings.append(BRACKETS[char])
            sink(parser.take(1))
        elif closings and char == closings[-1]:
            closings.pop()
            sink(parser.take(1))
        elif len(closings) == len(inside) and (yield from parser.comes_one(parser.ends)):
            sink(inside)
            return
        elif closings and (run := (UNQUOTED if len(closings) > len(inside) else BETWEEN).match(parser.text, parser.at)):
            sink(parser.take(len(run[0])))
        else:
            raise NotACallError(char)
        if not closings:
            return


def python_string(parser: CallParser, sink: Sink) -> Parsing[None]:
    """Pass on a string in its quotes, as it arrives."""
    quote = closing = parser.take(1)
    sink(quote)
    if (yield from parser.is_next(quote * 2)):
        closing = quote * 3
        sink(parser.take(2))
    while not (yield from parser.is_next(closing)):
        char = yield from parser.peek()
        run = INSIDE[quote].match(parser.text, parser.at)
        sink(parser.take(len(run[0]) if run else 1))
        if char == "\\":
            yield from parser.peek()
            sink(parser.take(1))
    sink(parser.take(len(closing)))


def json_of(text: str, declared: Declared) -> str:
    """Return an unquoted value as JSON. The value has the declared type if the text allows it. Otherwise it is a
    string."""
    return replace_halves(_json_of(text, declared))


def _json_of(text: str, declared: Declared) -> str:
    """Return the same value, with JSON escapes as they are written."""
    kinds, values = declared.get_kinds(), declared.get_values()
    stripped = text.strip()
    bare = PYTHON_WORDS.get(stripped, stripped)
    if kinds and kinds <= {"string", "null"}:
        return "null" if bare == "null" and "null" in kinds and text not in (values or ()) else in_json(text)
    if kinds == {"boolean"} and bare.lower() in ("true", "false"):
        return bare.lower()
    if kinds & {"object", "array"} and bare[:1] in ("{", "[", "(") and not is_json(bare):
        bare = convert_literal(bare) or bare
    if not is_json(bare) and bare[:1] in ('"', "[", "{"):
        bare = JSON_STRING.sub(lambda found: CONTROL.sub(escape_match, found[0]), bare)
    if not is_json(bare):
        return in_json(text)
    if values is not None and text in values:  # a string, unless enum also lists the JSON value
        return bare if any(in_json(value) == bare for value in values if not isinstance(value, str)) else in_json(text)
    return in_json(text) if "string" in kinds and not fits_kinds(bare, kinds) else bare


def fits_kinds(text: str, kinds: set[str]) -> bool:
    """Return True if the JSON text has one of these types."""
    kind = KIND_BY_START.get(text[0], "number")
    if kind == "number" and "number" not in kinds and INTEGER.fullmatch(text):
        kind = "integer"
    return kind in kinds


def is_json(text: str) -> bool:
    """Return True if the text is JSON as it is written, with numbers of any size."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(name)
