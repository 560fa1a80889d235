"""Strings of JSON as they are written: their text leaves before they end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tailrace.text.tool_parsers.json_patterns import CHARACTERS

ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])")
PARTIAL = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
ESCAPES = CHARACTERS | {"/": "/"}
HIGH, LOW = re.compile(r"\\u[dD][89abAB]..\Z"), re.compile(r"\\u[dD][c-fC-F]..")


class OpenString:
    """One string, behind its opening quote.

    Attributes:
        rest: what was fed behind the closing quote; None before the string ends.
    """

    def __init__(self) -> None:
        self._unread = ""
        self.rest: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that further characters give: up to the end of the string, or to what may be a part of an
        escape."""
        text, at = self._unread + text, 0
        while at < len(text) and text[at] != '"':
            if text[at] != "\\":
                at += 1
                continue
            if (escape := ESCAPE.match(text, at)) is None:
                if PARTIAL.match(text, at):
                    break
                at += 1  # It begins no escape.
                continue
            if HIGH.match(escape[0]):  # The other half of the pair belongs to the same character.
                rest = text[escape.end() : escape.end() + 6]
                if len(rest) < 6 and "\\u".startswith(rest[:2]) and '"' not in rest:
                    break
                at = escape.end() + (6 if LOW.match(rest) else 0)
                continue
            at = escape.end()
        found, self._unread = text[:at], text[at:]
        if self._unread.startswith('"'):
            self.rest = self._unread[1:]
        return ESCAPE.sub(decode_escape, found).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode_escape(escape: re.Match[str]) -> str:
    """Return the character of an escape. An escape that JSON does not know stays as it is."""
    kind, digits = escape[0][1], escape[0][2:]
    return chr(int(digits, 16)) if kind == "u" else ESCAPES.get(kind, escape[0])


class StringPiece(NamedTuple):
    """More text of a string.

    - name: of the property whose value the string is, or whose list has the string.
    - place: the string's place in the list; None without one.
    - over: the string has ended.
    """

    name: str
    place: int | None
    text: str
    over: bool


class ObjectReader:
    """The strings of an object: its properties, and the items of lists in them. Deeper strings are left out."""

    def __init__(self) -> None:
        self._opened: list[str] = []  # the brackets that are open
        self._string: OpenString | None = None
        self._name, self._index, self._named = "", 0, False

    def feed(self, text: str) -> Iterator[StringPiece]:
        """Yield the pieces that further characters give."""
        while text:
            if self._string is None:
                text = self._read_sign(text[0], text[1:])
                continue
            string, found = self._string, self._string.feed(text)
            text, self._string = (string.rest, None) if string.rest is not None else ("", string)
            if self._opened == ["{"] and not self._named:
                self._name += found
            elif self._opened in (["{"], ["{", "["]):
                place = self._index if self._opened[1:] else None
                yield StringPiece(self._name, place, found, self._string is None)

    def _read_sign(self, sign: str, rest: str) -> str:
        """Read a character outside of strings. Return what follows."""
        outer = self._opened == ["{"]
        match sign:
            case '"':
                self._string = OpenString()
                if outer and not self._named:
                    self._name = ""
            case "{" | "[":
                self._opened.append(sign)
            case "}" | "]" if self._opened:
                self._opened.pop()
            case ":" if outer:
                self._named, self._index = True, 0
            case ",":
                self._named = self._named and not outer
                self._index += self._opened == ["{", "["]
            case _:
                pass
        return rest
