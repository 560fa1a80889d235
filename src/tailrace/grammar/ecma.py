"""Translates patterns of JSON Schema (ECMA-262 with the u flag) to the syntax of the matching library's regexes
(Rust's).

The two look alike but differ in the meaning of `.`, `\\s`, `\\d`, `\\w`, of brackets in classes and of unknown
escapes. So every part is read as ECMA-262 defines it (section 22.2) and written in an unambiguous form. Where ECMA-262
is lenient without the u flag (`\\-`, a lone `{`), the lenient reading is used, because real patterns rely on it.
"""

from __future__ import annotations

import re

from tailrace.errors import format_json
from tailrace.grammar.check import UnsupportedError

# JSON can write these only as \u00XX, which is not allowed (grammar/llguidance.py, options). The library never writes
# DEL in a string.
CONTROL = r"\x00-\x07\x0b\x0e-\x1f\x7f"
UNWRITABLE = frozenset(chr(code) for code in (*range(0x08), 0x0B, *range(0x0E, 0x20), 0x7F))
SPACE = r"\t\n\x0b\x0c\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
SETS = {"d": "0-9", "w": "0-9A-Za-z_", "s": SPACE}
LETTERS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
# what an identity escape may stand for: no letters and digits
PLAIN = re.compile(r"[^0-9A-Za-z]")
CHARACTER = re.compile(
    r"u\{([0-9a-fA-F]{1,6})\}|u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})"
)
CATEGORY = re.compile(
    r"([pP])\{(?:(?:General_Category|gc)=)?(L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C|LC|Letter"
    r"|Lowercase_Letter|Uppercase_Letter|Titlecase_Letter|Cased_Letter|Modifier_Letter|Other_Letter"
    r"|Mark|Nonspacing_Mark|Spacing_Mark|Enclosing_Mark|Number|Decimal_Number|Letter_Number|Other_Number|Punctuation"
    r"|Symbol|Math_Symbol|Currency_Symbol|Modifier_Symbol|Other_Symbol|Separator"
    r"|Space_Separator|Alphabetic|Lowercase|Uppercase|White_Space|Emoji|(?:Script|sc)=[A-Z][A-Za-z_]+)\}"
)
QUANTIFIER = re.compile(r"(?:([*+?])|\{([0-9]+)(?:(,)([0-9]*))?\})(\??)")
GROUP = re.compile(r"\((?:\?:|\?<(?![=!])[\w$]+>)?(?!\?)")
LOOK_AHEAD = re.compile(r"\^\(\?!\^?\[(?!\^)(?P<class>(?:[^\]\\]|\\.)+)\]\*\$\)(?P<rest>[^|]*)", re.DOTALL)
ANY = "(?s:.*)"
MAX_REPEAT = 1_000_000  # no text is so long; the library's regexes count to 2 ** 32 - 1


def translate_pattern(pattern: str) -> str:
    """Return a regex in the library's syntax that is searched for in a text, as the pattern is.

    Raises:
        UnsupportedError: it is no pattern, or has no equivalent: back references, look-around, word boundaries.
    """
    return "".join(Reader(pattern).read())


def split_look_ahead(pattern: str) -> list[str]:
    """Return patterns of which a text has to match each to match this one. Pydantic's Decimal begins with a look-ahead,
    which says that not all characters are of a class: some other character occurs."""
    found = LOOK_AHEAD.fullmatch(pattern)
    return [f"^{found['rest']}", f"[^{found['class']}]"] if found else [pattern]


def enclose_pattern(pattern: str) -> str:
    """Return a regex that matches every whole text in which the pattern matches somewhere.

    Raises:
        UnsupportedError: as `translate_pattern`; or an anchor is not at an end of the pattern or of an alternative.
    """
    reader = Reader(pattern)
    alternatives: list[list[str]] = [[]]
    depth = 0
    for piece in reader.read():
        depth += {"(?:": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            alternatives.append([])
        else:
            alternatives[-1].append(piece)
    return "|".join(map(reader.replace_anchors, alternatives))


class Reader:
    """Reads one pattern from left to right. A loop rather than recursion: groups may be nested to any depth."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.out = pattern, 0, list[str]()
        self.open = 0  # groups

    def read(self) -> list[str]:
        """Return the translated parts. Anchors, bars and brackets of groups are parts by themselves."""
        while self.at < len(self.pattern):
            match self.pattern[self.at]:
                case "^" | "$" | "|" as plain:
                    self.at += 1
                    self.out.append(plain)
                case "(":
                    self.read_group()
                case ")":
                    self.close()
                case "*" | "+" | "?":
                    raise self.refusal("nothing to repeat")
                case _:
                    self.out.append(self.read_atom())
                    self.read_quantifier()
        if self.open:
            raise self.refusal("a group that is not closed")
        return self.out

    def replace_anchors(self, pieces: list[str]) -> str:
        """Return one alternative, its anchors replaced by the text that may surround it."""
        begins, ends = pieces[:1] == ["^"], pieces[-1:] == ["$"]
        core = pieces[begins : len(pieces) - ends]
        if {"^", "$"} & set(core):
            raise self.refusal("an anchor that is not at an end")
        return f"{'' if begins else ANY}(?:{''.join(core)}){'' if ends else ANY}"

    def read_group(self) -> None:
        if (found := GROUP.match(self.pattern, self.at)) is None:
            raise self.refusal("look-around or a group with options")
        self.at, self.open = found.end(), self.open + 1
        self.out.append("(?:")

    def close(self) -> None:
        if not self.open:
            raise self.refusal("a bracket that closes no group")
        self.at, self.open = self.at + 1, self.open - 1
        self.out.append(")")
        self.read_quantifier()

    def read_atom(self) -> str:
        """Read one character or one class."""
        match self.pattern[self.at]:
            case "[":
                return self.read_class()
            case ".":
                self.at += 1
                return restrict_class(r"^\n\r\x{2028}\x{2029}")
            case "\\":
                self.at += 1
                return self.read_escape()
            case character:
                self.at += 1
                return write_literal(self.check_surrogate(character))

    def read_quantifier(self) -> None:
        if (found := QUANTIFIER.match(self.pattern, self.at)) is None:
            return
        sign, least, comma, most, _ = found.groups()  # lazy quantifiers match the same texts
        if sign is None:
            low, high = int(least), int(most) if most else None
            if high is not None and high < low:
                raise self.refusal("a repeat whose upper bound is below its lower bound")
            if max(low, high or 0) > MAX_REPEAT:
                raise self.refusal(f"a repeat of more than {MAX_REPEAT}")
            sign = f"{{{low}{',' if comma else ''}{'' if high is None else high}}}"
        self.at = found.end()
        self.out.append(sign)
        if QUANTIFIER.match(self.pattern, self.at):
            raise self.refusal("nothing to repeat")

    def read_escape(self) -> str:
        r"""Return an escape outside of brackets, after the \."""
        if self.at < len(self.pattern) and (letter := self.pattern[self.at]) in "dwsDWS":
            self.at += 1
            return restrict_class(f"{'^' if letter.isupper() else ''}{SETS[letter.lower()]}")
        if (found := CATEGORY.match(self.pattern, self.at)) is not None:
            self.at = found.end()
            return restrict_class(rf"\{found[1]}{{{found[2]}}}")
        return write_literal(self.read_character())

    def read_character(self, bracket: bool = False) -> str:
        r"""Return the one character that an escape stands for, after the \."""
        if (found := CHARACTER.match(self.pattern, self.at)) is not None:
            self.at = found.end()
            if found[2]:
                return (bytes.fromhex(found[2]) + bytes.fromhex(found[3])).decode("utf-16-be")
            code = int(found[1] or found[4] or found[5], 16)
            if code > 0x10FFFF:
                raise self.refusal("a code point above U+10FFFF")
            return self.check_surrogate(chr(code))
        letter, after = self.pattern[self.at : self.at + 1], self.pattern[self.at + 1 : self.at + 2]
        if letter == "c" and after.isascii() and after.isalpha():
            self.at += 2
            return chr(ord(after) % 32)
        self.at += 1
        if letter in LETTERS and not (letter == "0" and after.isdecimal()):
            return LETTERS[letter]
        if letter == "b" and bracket:
            return "\b"
        if not PLAIN.fullmatch(letter):
            raise self.refusal(f"the escape \\{letter}")
        return self.check_surrogate(letter)

    def read_class(self) -> str:
        """Read a class, from [ to ]."""
        self.at += 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        members: list[str] = []
        while (first := self.member()) is not None:
            if (
                first[1] is not None
                and self.pattern.startswith("-", self.at)
                and self.pattern[self.at + 1 : self.at + 2] not in ("", "]")
            ):
                self.at += 1
                last = self.member()
                assert last is not None  # the ] was excluded above
                if last[1] is None or last[1] < first[1]:
                    raise self.refusal("an invalid range")
                members.append(f"{escape_character(first[1])}-{escape_character(last[1])}")
            else:
                members.append(first[0])
        if not members:
            return restrict_class(r"\x00-\x{10ffff}" if negated else r"a&&b")
        return restrict_class(f"{'^' if negated else ''}{''.join(members)}")

    def member(self) -> tuple[str, str | None] | None:
        """Return the next member of a class: its translation, and the character if it is one. None: the class ends
        here."""
        if self.at >= len(self.pattern):
            raise self.refusal("a class that is not closed")
        character = self.pattern[self.at]
        self.at += 1
        if character == "]":
            return None
        if character != "\\":
            return escape_character(self.check_surrogate(character)), character
        if self.at < len(self.pattern) and (letter := self.pattern[self.at]) in "dwsDWS":
            self.at += 1
            return f"[{'^' if letter.isupper() else ''}{SETS[letter.lower()]}]", None
        if (found := CATEGORY.match(self.pattern, self.at)) is not None:
            self.at = found.end()
            return rf"\{found[1]}{{{found[2]}}}", None
        one = self.read_character(bracket=True)
        return escape_character(one), one

    def check_surrogate(self, character: str) -> str:
        if "\ud800" <= character <= "\udfff":
            raise self.refusal("half a surrogate pair")
        return character

    def refusal(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"the pattern {format_json(self.pattern, 80)}: {what} at {min(self.at, len(self.pattern))}"
        )


def restrict_class(members: str) -> str:
    """Return a class, without the characters that can't be written in JSON. A "^" would negate the whole
    intersection."""
    return f"[{'[' + members + ']' if '&&' in members or members.startswith('^') else members}&&[^{CONTROL}]]"


def write_literal(character: str) -> str:
    """Return one character. A character that can't be written becomes an empty class."""
    return r"[a&&b]" if character in UNWRITABLE else escape_character(character)


def escape_character(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
