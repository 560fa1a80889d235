"""The parts of a template's pattern, if it is made of texts, white space and groups: what a grammar can write."""

from __future__ import annotations

import re
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.grammar_writer import BLANK, escape_pattern

REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
SPACE = (_constants.CATEGORY, _constants.CATEGORY_SPACE)


class Blank(NamedTuple):
    """White space that may stand at a place. lines: only one line break may."""

    lines: bool


class Group(NamedTuple):
    """A named group. shortest: it takes any text, and as little as possible."""

    name: str
    shortest: bool


Part = str | Blank | Group


def read_parts(source: str) -> list[Part] | None:
    """Return the parts of a pattern; None if it has others."""
    try:
        tree = _parser.parse(source, re.DOTALL)
    except (re.error, RecursionError, OverflowError):
        return None
    names = {number: name for name, number in tree.state.groupdict.items()}
    parts: list[Part] = []
    for op, value in tree:
        if op is _constants.LITERAL:
            text = parts.pop() if parts and isinstance(parts[-1], str) else ""
            parts.append(f"{text}{chr(value)}")
        elif op is _constants.SUBPATTERN and value[0] in names:
            parts.append(Group(names[value[0]], is_shortest_text(value[3])))
        elif op in REPEATS and value[0] == 0 and (blank := read_blank(value)) is not None:
            parts.append(blank)
        else:
            return None
    return parts


def is_shortest_text(nodes: Any) -> bool:
    """Return whether the nodes are `.*?` or `.+?`."""
    if len(nodes) != 1 or nodes[0][0] is not _constants.MIN_REPEAT:
        return False
    least, most, inner = nodes[0][1]
    return least <= 1 and most is _constants.MAXREPEAT and len(inner) == 1 and inner[0][0] is _constants.ANY


def read_blank(value: Any) -> Blank | None:
    """Return the white space that a repeat may be."""
    _, most, inner = value
    if len(inner) == 1 and inner[0] == (_constants.LITERAL, ord("\n")) and most == 1:
        return Blank(lines=True)
    if len(inner) == 1 and inner[0] == (_constants.IN, [SPACE]) and most is _constants.MAXREPEAT:
        return Blank(lines=False)
    return None


def split_marker(parts: list[Part] | None) -> tuple[str, ...] | None:
    """Return the texts of a marker without groups; None if it has groups. White space at its ends is left out."""
    if parts is None or any(isinstance(part, Group) for part in parts):
        return None
    return tuple(part for part in parts if isinstance(part, str)) or None


def make_pattern(texts: tuple[str, ...]) -> str:
    """Return a pattern of a marker, for a grammar."""
    return BLANK.join(map(escape_pattern, texts))
