"""Match the next text, of which more may arrive, with sequences of literals, names and white space."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from tailrace.text.tool_parsers.call_parser import WHITE, WORD, CallParser, Parsing

KEY = re.compile(r"[^<>\"&\n]*")  # a parameter's name between tags
COMMAS = re.compile(r"[,\s]*")
END = re.compile(r"\Z")  # of the whole text
Part: TypeAlias = str | re.Pattern[str]  # a literal, or a repeated class of characters
HOLE = re.compile(r"(NAME|KEY|TYPE|INDEX|\n)")
HOLES: dict[str, re.Pattern[str]] = {"NAME": WORD, "KEY": KEY, "TYPE": WORD, "INDEX": WORD, "\n": WHITE}


def parts_of(tag: str) -> tuple[Part, ...]:
    """Return the sequence for a tag with placeholders."""
    return tuple(HOLES.get(part, part) for part in HOLE.split(tag) if part)


def read_torn_tag(parser: CallParser, tags: Sequence[str], others: Sequence[str]) -> bool:
    """Read an incomplete tag if it is all the remaining text. Return True if it was read.

    `others`: tags that may come instead if a limit cut the text.
    """
    rest = parser.unread
    torn = parser.ended and bool(rest) and any(tag.startswith(rest) for tag in tags)
    if not torn or (parser.cut and any(tag.startswith(rest) for tag in others)):
        return False
    parser.take(len(rest))
    return True


def make_torn_end(tags: Sequence[str], others: Sequence[str], shortest: int = 1) -> re.Pattern[str]:
    """Return a pattern of an incomplete tag at the end of the text. `others`: tags whose beginnings do not match."""
    found = {tag[:size] for tag in tags for size in range(shortest, len(tag))}
    found -= {tag[:size] for tag in others for size in range(1, len(tag) + 1)}
    return re.compile(rf"(?:{'|'.join(map(re.escape, sorted(found, key=len, reverse=True)))})\Z")


def match_parts(text: str, at: int, parts: Sequence[Part], ended: bool) -> int | None:
    """Return where the sequence ends that begins at `at`. Return -1 if other text comes, None if more text is needed.

    `ended`: the text is complete.
    """
    for part in parts:
        if isinstance(part, str):
            there = text[at : at + len(part)]
            if there != part:
                return None if part.startswith(there) and not ended else -1
            at += len(part)
            continue
        found = part.match(text, at)
        end = found.end() if found else at
        if end == len(text) and not ended:
            return None
        if end == at and part not in (WHITE, COMMAS) and not (part is END and end == len(text)):
            return -1
        at = end
    return at


def match_sequences(parser: CallParser, sequences: Sequence[Sequence[Part]]) -> Parsing[int]:
    """Return the length of the first sequence that comes next, or 0 if no sequence does. Read nothing."""
    while True:
        for parts in sequences:
            end = match_parts(parser.text, parser.at, parts, parser.ended)
            if end is None:
                break
            if end >= 0:
                return end - parser.at
        else:
            return 0
        yield
