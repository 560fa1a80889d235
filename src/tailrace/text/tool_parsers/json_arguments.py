"""The arguments of one call, where they are JSON: an object, or a text that holds one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, Sink, drop_text
from tailrace.text.tool_parsers.json_quotes import FENCE, OPENINGS, StringPlace
from tailrace.text.tool_parsers.json_repair import json_value, object_of
from tailrace.text.tool_parsers.json_strings import json_text

NOTHING = ("null", "None")
LANGUAGE = re.compile(r"\w*")  # behind a fence


def json_arguments(parser: CallParser, begin: Callable[[], Sink], ends: Sequence[str] = ()) -> Parsing[None]:
    """Read the arguments, which are an object. A text may hold it (Granite 4), and there may be none.

    Args:
        begin: is called when it is certain that these are arguments; it returns what takes them.
        ends: markers. What is open before one of these is closed.

    Raises:
        NotACallError: these are no arguments, or the object can't be repaired.
    """
    char = "" if parser.closed_by_end else (yield from parser.peek())
    if char == "{":
        yield from json_value(parser, begin(), ends)
        return
    if char == "`" and (yield from parser.is_next(FENCE)):
        parser.name_call(None)
        yield from open_fence(parser)
        yield from json_arguments(parser, begin, (*ends, FENCE))
        yield from close_fence(parser)
        return
    if char and char in OPENINGS:
        parser.name_call(None)
        text = yield from json_text(parser, StringPlace(tuple(ends), parser.around, parser.closing is not None))
        found = object_of(text) if text.strip() not in ("", *NOTHING) else "{}"
    else:
        found = "{}" if (yield from read_no_arguments(parser, ends)) else None
    if found is None:
        parser.name_call(None)
        raise NotACallError("an object")
    begin()(found)


def read_no_arguments(parser: CallParser, ends: Sequence[str]) -> Parsing[bool]:
    """Read a word or an empty list in the place of arguments. True if there are none."""
    if (yield from parser.comes_one(ends)):
        return True
    for word in NOTHING:
        if (yield from parser.accept(word)):
            return True
    if (yield from parser.accept("[")):
        yield from parser.read_whitespace()
        return (yield from parser.accept("]"))
    return False


def open_fence(parser: CallParser) -> Parsing[bool]:
    """Read the beginning of a block of code, if it comes next."""
    if not (yield from parser.accept(FENCE)):
        return False
    yield from parser.read_span(LANGUAGE, drop_text)
    yield from parser.read_whitespace()
    return True


def close_fence(parser: CallParser) -> Parsing[None]:
    """Read the end of a block of code, which may be missing."""
    yield from parser.read_whitespace()
    yield from parser.accept(FENCE)
