"""Escapes in JSON strings inside a call. They are passed on as valid JSON."""

from __future__ import annotations

import re

from tailrace.text.tool_parsers.call_parser import CallParser, Parsing, Sink, in_json

UNSAFE = re.compile(r'["\x00-\x1f]')  # what a JSON string must escape
ESCAPABLE = '"\\/bfnrt'  # what may follow a backslash in JSON, besides u
UNICODE = re.compile(r"u[0-9a-fA-F]{4}")
PARTIAL = re.compile(r"u[0-9a-fA-F]{0,3}")
# A character above U+FFFF is two escapes, a surrogate pair. HIGH matches the first escape, and PAIR matches both.
# PARTIAL_PAIR matches a beginning of a pair. HALF matches either escape.
HIGH = re.compile(r"u[dD][89abAB]..", re.DOTALL)
PAIR = re.compile(r"u[dD][89abAB]..\\u[dD][c-fC-F][0-9a-fA-F]{2}", re.DOTALL)
PARTIAL_PAIR = re.compile(r"u....(\\(u([dD]([c-fC-F][0-9a-fA-F]?)?)?)?)?", re.DOTALL)
HALF = re.compile(r"u[dD][89a-fA-F]..", re.DOTALL)
# an escaped backslash, a surrogate pair, or half of a pair, inside JSON text
ESCAPED = re.compile(r"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..", re.DOTALL)
WHOLE = len("\\uXXXX\\uXXXX")


def replace_halves(text: str) -> str:
    """Return valid JSON: replace each half of a surrogate pair by U+FFFD."""
    if "\\u" not in text:
        return text
    return ESCAPED.sub(lambda found: "\\ufffd" if 2 < len(found[0]) < WHOLE else found[0], text)


def escape_match(found: re.Match[str]) -> str:
    """Return the matched text as JSON writes it between quotes."""
    return escape_text(found[0])


def escape_text(text: str) -> str:
    """Return the text as JSON writes it between quotes."""
    return in_json(text)[1:-1]


def escape_sequence(parser: CallParser, sink: Sink, closings: str) -> Parsing[None]:
    """Read a backslash and the characters that it escapes. Pass on valid JSON.

    A backslash that starts no JSON escape is text. Half of a surrogate pair becomes U+FFFD.
    """
    parser.take(1)
    char = yield from parser.peek()
    if char == "u":
        yield from complete_escape(parser, PARTIAL)
        if not UNICODE.match(parser.text, parser.at):
            sink("\\\\")
            return
        if HIGH.match(parser.text, parser.at):
            yield from complete_escape(parser, PARTIAL_PAIR)
        pair, half = PAIR.match(parser.text, parser.at), HALF.match(parser.text, parser.at)
        found = parser.take(len(pair[0]) if pair else len("uXXXX"))
        sink("\\" + ("ufffd" if half and not pair else found))
    elif char in ESCAPABLE:
        sink("\\" + parser.take(1))
    elif char == "'" or char in closings:
        sink(parser.take(1))
    else:
        sink("\\\\")


def complete_escape(parser: CallParser, partial: re.Pattern[str]) -> Parsing[None]:
    """Wait while the unread text matches `partial`, a pattern of incomplete escapes."""
    while partial.fullmatch(parser.text, parser.at) and not parser.ended:
        yield from parser.wait_for_text()
