"""The arguments of one call as JSON: an object, or a text that holds an object."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing, Sink, drop_text
from tailrace.text.tool_parsers.json_quotes import FENCE, OPENINGS, StringPlace
from tailrace.text.tool_parsers.json_repair import json_value, object_of
from tailrace.text.tool_parsers.json_strings import json_text

NOTHING = ("null", "None")
LANGUAGE = re.compile(r"\w*")  # of a code block, after the fence


def json_arguments(parser: CallParser, begin: Callable[[], Sink], ends: Sequence[str] = ()) -> Parsing[None]:
    """Read arguments, which are a JSON object. A text may hold the object (Granite 4). Arguments may also be missing.

    Args:
        begin: a function that is called when arguments are certain to come. It returns the sink for the arguments.
        ends: markers. Brackets and strings that are open before such a marker are closed.

    Raises:
        NotACallError: the next text is no arguments, or the object can't be repaired.
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
    """Read a word or an empty list that replaces arguments. Return True if the call has no arguments."""
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
    """Read the beginning of a code block if it comes next. Return True if it does."""
    if not (yield from parser.accept(FENCE)):
        return False
    yield from parser.read_span(LANGUAGE, drop_text)
    yield from parser.read_whitespace()
    return True


def close_fence(parser: CallParser) -> Parsing[None]:
    """Read the end of a code block, which may be missing."""
    yield from parser.read_whitespace()
    yield from parser.accept(FENCE)
