"""Regular expressions of a text, rewritten to match the text as it stands in a JSON string.

The syntax is that of Rust's regex crate, which llguidance reads. JSON has one spelling of each character here: an
escape of two characters for a quote, a backslash and five control characters, and the character itself for the others.
Other control characters can't be written.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import NamedTuple

ESCAPES = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
CHARACTERS = {letter: char for char, letter in ESCAPES.items()}  # the letter of an escape → its character
SPECIAL = frozenset(ESCAPES)
NOTHING = "[a&&b]"
REST = r'[^"\\\x00-\x1f]'
SPACES = frozenset("\n\r\t\f")
SETS = {"d": frozenset(), "w": frozenset(), "s": SPACES}
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
CODE = re.compile(r"x([0-9a-fA-F]{2})|[xuU]\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})")
CATEGORY = re.compile(r"[pP](?:([A-Z])|\{([A-Z][a-z]?)\})")
GROUP = re.compile(r"\((?:\?(?:P?<\w+>|([is]*)(?:-[is]+)?([:)])))?(?!\?)")
QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
STRING_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[nrtbf\"'\\/])")


class RewriteError(ValueError):
    """An expression that can't be rewritten."""


class Members(NamedTuple):
    """A class of characters: the class in the library's syntax, and which characters it has that JSON escapes."""

    text: str
    special: frozenset[str]


def find_plain_text(literal: str) -> str:
    """Return the text of a string literal of Lark."""

    def decode(found: re.Match[str]) -> str:
        kind = found[0][1]
        if kind in "xuU":
            return chr(int(found[0][2:], 16))
        return CHARACTERS.get(kind, kind)

    inside = literal[1:-1]
    if "\\" in STRING_ESCAPE.sub("", inside):
        raise RewriteError("an escape that is not known")
    try:
        return STRING_ESCAPE.sub(decode, inside)
    except (ValueError, OverflowError) as error:
        raise RewriteError("an escape that is no character") from error


def quote_text(text: str, folded: bool, in_json: bool) -> str:
    """Return a text as literals. folded: in small letters or capitals."""
    if not in_json:
        return json.dumps(text, ensure_ascii=False) + ("i" if folded else "")
    if any(ord(char) < 32 and char not in ESCAPES for char in text):
        raise RewriteError("a control character that calls can't write")
    if not folded:
        escaped = "".join(f"\\{ESCAPES[char]}" if char in ESCAPES else char for char in text)
        return json.dumps(escaped, ensure_ascii=False)
    return f"/(?i:{''.join(map(write_character, text))})/" if text else '""'


def escape_literal(char: str) -> str:
    """Return a character for a pattern."""
    return char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):x}}}"


def write_character(char: str) -> str:
    """Return the pattern of one character."""
    if char in ESCAPES:
        return f"(?-i:\\\\{escape_literal(ESCAPES[char])})"
    return NOTHING if ord(char) < 32 else escape_literal(char)


def write_members(members: Members) -> str:
    """Return the pattern of one character of a class."""
    plain = f"[{members.text}&&{REST}]"
    if not members.special:
        return plain
    letters = "".join(escape_literal(ESCAPES[char]) for char in sorted(members.special))
    return f"(?:{plain}|(?-i:\\\\[{letters}]))"


def rewrite_pattern(pattern: str, flags: str) -> str:
    """Return the pattern of the same texts in a JSON string.

    Raises:
        RewriteError: the pattern has a part that is not known, or look-around, anchors or word boundaries.
    """
    if set(flags) - set("isu"):
        raise RewriteError(f"the flags {flags} are not supported")
    written = PatternReader(pattern, "s" in flags).read()
    return f"(?i:{written})" if "i" in flags else written


class PatternReader:
    """Reads one pattern from left to right. dotall: a point is also a line break."""

    def __init__(self, pattern: str, dotall: bool) -> None:
        self.pattern, self.at, self.dotall = pattern, 0, dotall
        self._outer: list[bool] = []

    def read(self) -> str:
        """Return the rewritten pattern."""
        out: list[str] = []
        while self.at < len(self.pattern):
            char = self.pattern[self.at]
            if char == "(":
                out.append(self._open_group())
            elif char == ")":
                if not self._outer:
                    raise RewriteError("a bracket that closes no group")
                self.dotall = self._outer.pop()
                out.append(self._take(1))
            elif char == "|":
                out.append(self._take(1))
            elif (found := QUANTIFIER.match(self.pattern, self.at)) is not None:
                out.append(self._take(len(found[0])))
            elif char in "^$":
                raise RewriteError("an anchor")
            else:
                out.append(self._read_atom(char))
        if self._outer:
            raise RewriteError("a group that is not closed")
        return "".join(out)

    def _take(self, length: int) -> str:
        self.at += length
        return self.pattern[self.at - length : self.at]

    def _open_group(self) -> str:
        found = GROUP.match(self.pattern, self.at)
        if found is None or (found[2] == ")" and found[0] != "(?i)") or "-" in found[0].partition("<")[0]:
            raise RewriteError("look-around or a group with options")
        self.at = found.end()
        if found[0] == "(?i)":
            return found[0]
        self._outer.append(self.dotall)
        self.dotall |= "s" in (found[1] or "")
        return "(?i:" if "i" in (found[1] or "") else "(?:"

    def _read_atom(self, char: str) -> str:
        if char == "[":
            return write_members(self._read_class())
        if char == ".":
            self.at += 1
            text = r"[\x00-\x{10ffff}]" if self.dotall else r"[^\n]"
            return write_members(Members(text, SPECIAL if self.dotall else SPECIAL - {"\n"}))
        if char == "\\":
            self.at += 1
            found = self._read_escape()
            return write_members(found) if isinstance(found, Members) else write_character(found)
        return write_character(self._take(1))

    def _read_escape(self) -> Members | str:
        """Return what an escape stands for, after the backslash."""
        if (code := CODE.match(self.pattern, self.at)) is not None:
            self.at = code.end()
            number = int(next(digits for digits in code.groups() if digits), 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise RewriteError("an escape that is no character")
            return chr(number)
        if (found := CATEGORY.match(self.pattern, self.at)) is not None:
            self.at = found.end()
            name = found[1] or found[2]
            special = frozenset(char for char in SPECIAL if unicodedata.category(char).startswith(name))
            return Members(f"\\{found[0]}", SPECIAL - special if found[0][0] == "P" else special)
        letter = self._take(1)
        if letter.lower() in SETS and letter:
            special = SETS[letter.lower()]
            return Members(f"\\{letter}", SPECIAL - special if letter.isupper() else special)
        if letter in CONTROLS:
            return CONTROLS[letter]
        if not letter or letter.isalnum() or not letter.isascii():
            raise RewriteError(f"the escape \\{letter}")
        return letter

    def _read_class(self) -> Members:
        """Read a class, from [ to ]."""
        begin = self.at
        self.at += 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        special, both, first = frozenset[str](), None, True
        while first or not self.pattern.startswith("]", self.at):
            if self.at >= len(self.pattern):
                raise RewriteError("a class that is not closed")
            if self.pattern.startswith(("--", "~~", "[:"), self.at):
                raise RewriteError("a class of a kind that is not supported")
            if self.pattern.startswith("&&", self.at):
                self.at += 2
                both = special if both is None else both & special
                special = frozenset()
            else:
                special |= self._read_member()
            first = False
        self.at += 1
        found = special if both is None else both & special
        return Members(self.pattern[begin : self.at], SPECIAL - found if negated else found)

    def _read_member(self) -> frozenset[str]:
        """Read a character, a range or an inner class. Return which of the escaped characters it has."""
        if self.pattern.startswith("[", self.at):
            return self._read_class().special
        first = self._read_one()
        if isinstance(first, Members):
            return first.special
        rest = self.pattern[self.at : self.at + 2]
        if rest[:1] != "-" or rest[1:] in ("]", ""):
            return SPECIAL & {first}
        self.at += 1
        last = self._read_one()
        if isinstance(last, Members) or last < first:
            raise RewriteError("an invalid range")
        return frozenset(char for char in SPECIAL if first <= char <= last)

    def _read_one(self) -> Members | str:
        if (char := self._take(1)) == "\\":
            return self._read_escape()
        return char
