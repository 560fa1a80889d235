"""Patterns of JSON Schema, which are ECMA-262's with the u flag, in the syntax of the matching library's regexes (Rust's).

The two look alike and differ in what they mean: `.`, `\\s`, `\\d`, `\\w`, brackets in classes, what an unknown escape is. So every piece is
read as ECMA-262 has it (section 22.2) and written in a form that can't mean anything else. Where ECMA-262 is lenient without the u flag
(`\\-`, a lone `{`), that reading is taken, since real patterns count on it.
"""

from __future__ import annotations

import re

from tailrace.grammar.check import UnsupportedError

# JSON can only write these as \u00XX, which is not written (grammar/llguidance.py, options); DEL the library never writes in a string
CONTROL = r"\x00-\x07\x0b\x0e-\x1f\x7f"
UNWRITABLE = frozenset(chr(code) for code in (*range(0x08), 0x0B, *range(0x0E, 0x20), 0x7F))
SPACE = r"\t\n\x0b\x0c\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
SETS = {"d": "0-9", "w": "0-9A-Za-z_", "s": SPACE}
LETTERS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
# an identity escape may be of any of these; of other letters and digits none
PLAIN = re.compile(r"[^0-9A-Za-z]")
CHARACTER = re.compile(
    r"u\{([0-9a-fA-F]{1,6})\}|u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})"
)
CATEGORY = re.compile(
    r"([pP])\{(?:(?:General_Category|gc)=)?(L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C|LC|Letter|Lowercase_Letter"
    r"|Uppercase_Letter|Titlecase_Letter|Cased_Letter|Modifier_Letter|Other_Letter|Mark|Nonspacing_Mark|Spacing_Mark|Enclosing_Mark"
    r"|Number|Decimal_Number|Letter_Number|Other_Number|Punctuation|Symbol|Math_Symbol|Currency_Symbol|Modifier_Symbol|Other_Symbol"
    r"|Separator|Space_Separator|Alphabetic|Lowercase|Uppercase|White_Space|Emoji|(?:Script|sc)=[A-Z][A-Za-z_]+)\}"
)
QUANTIFIER = re.compile(r"(?:([*+?])|\{([0-9]+)(?:(,)([0-9]*))?\})(\??)")
GROUP = re.compile(r"\((?:\?:|\?<(?![=!])[\w$]+>)?(?!\?)")
ANY = "(?s:.*)"
MAX_REPEAT = 1_000_000  # a text can't be so long; the library's regexes count to 2 ** 32 - 1


def translated(pattern: str) -> str:
    """What it matches somewhere in a text, as a regex of the library's that is searched for too.

    Raises:
        UnsupportedError: it is no pattern, or there is no such thing here: back references, looking around, word boundaries.
    """
    return "".join(Reader(pattern).read())


def enclosing(pattern: str) -> str:
    """Every text that it matches somewhere, as a regex of whole texts.

    Raises:
        UnsupportedError: as `translated`; or there is an anchor elsewhere than at an end of the pattern or of one of its alternatives.
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
    return "|".join(map(reader.unanchored, alternatives))


class Reader:
    """One pattern, from left to right. A loop rather than recursion: groups may be nested as deep as anybody likes."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.out = pattern, 0, list[str]()
        self.open = 0  # groups

    def read(self) -> list[str]:
        """Anchors, bars and brackets of groups are pieces by themselves."""
        while self.at < len(self.pattern):
            match self.pattern[self.at]:
                case "^" | "$" | "|" as plain:
                    self.at += 1
                    self.out.append(plain)
                case "(":
                    self.group()
                case ")":
                    self.close()
                case "*" | "+" | "?":
                    raise self.refusal("nothing to repeat")
                case _:
                    self.out.append(self.atom())
                    self.quantifier()
        if self.open:
            raise self.refusal("a group that is not closed")
        return self.out

    def unanchored(self, pieces: list[str]) -> str:
        """One alternative, with what may stand around it in place of anchors."""
        begins, ends = pieces[:1] == ["^"], pieces[-1:] == ["$"]
        core = pieces[begins : len(pieces) - ends]
        if {"^", "$"} & set(core):
            raise self.refusal("an anchor within")
        return f"{'' if begins else ANY}(?:{''.join(core)}){'' if ends else ANY}"

    def group(self) -> None:
        if (found := GROUP.match(self.pattern, self.at)) is None:
            raise self.refusal("a group that looks around, or has options")
        self.at, self.open = found.end(), self.open + 1
        self.out.append("(?:")

    def close(self) -> None:
        if not self.open:
            raise self.refusal("a bracket that was not opened")
        self.at, self.open = self.at + 1, self.open - 1
        self.out.append(")")
        self.quantifier()

    def atom(self) -> str:
        """One character, or one of a set."""
        match self.pattern[self.at]:
            case "[":
                return self.bracket()
            case ".":
                self.at += 1
                return writable(r"^\n\r\x{2028}\x{2029}")
            case "\\":
                self.at += 1
                return self.escaped()
            case character:
                self.at += 1
                return literal(self.sound(character))

    def quantifier(self) -> None:
        if (found := QUANTIFIER.match(self.pattern, self.at)) is None:
            return
        sign, least, comma, most, _ = found.groups()  # a lazy one matches the same texts
        if sign is None:
            low, high = int(least), int(most) if most else None
            if high is not None and high < low:
                raise self.refusal("a repeat from more to less")
            if max(low, high or 0) > MAX_REPEAT:
                raise self.refusal(f"a repeat of more than {MAX_REPEAT}")
            sign = f"{{{low}{',' if comma else ''}{'' if high is None else high}}}"
        self.at = found.end()
        self.out.append(sign)
        if QUANTIFIER.match(self.pattern, self.at):
            raise self.refusal("nothing to repeat")

    def escaped(self) -> str:
        r"""Outside of brackets, behind the \."""
        if self.at < len(self.pattern) and (letter := self.pattern[self.at]) in "dwsDWS":
            self.at += 1
            return writable(f"{'^' if letter.isupper() else ''}{SETS[letter.lower()]}")
        if (found := CATEGORY.match(self.pattern, self.at)) is not None:
            self.at = found.end()
            return writable(rf"\{found[1]}{{{found[2]}}}")
        return literal(self.character())

    def character(self, bracket: bool = False) -> str:
        r"""The one character that is meant, behind the \."""
        if (found := CHARACTER.match(self.pattern, self.at)) is not None:
            self.at = found.end()
            if found[2]:
                return (bytes.fromhex(found[2]) + bytes.fromhex(found[3])).decode("utf-16-be")
            code = int(found[1] or found[4] or found[5], 16)
            if code > 0x10FFFF:
                raise self.refusal("a code point that there is not")
            return self.sound(chr(code))
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
        return self.sound(letter)

    def bracket(self) -> str:
        """A class, from [ to ]."""
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
                assert last is not None  # a ] was looked for
                if last[1] is None or last[1] < first[1]:
                    raise self.refusal("a range that is none")
                members.append(f"{code(first[1])}-{code(last[1])}")
            else:
                members.append(first[0])
        if not members:
            return writable(r"\x00-\x{10ffff}" if negated else r"a&&b")
        return writable(f"{'^' if negated else ''}{''.join(members)}")

    def member(self) -> tuple[str, str | None] | None:
        """The next of a class: as it is written, and the character if it is one. None: the class ends here."""
        if self.at >= len(self.pattern):
            raise self.refusal("a class that is not closed")
        character = self.pattern[self.at]
        self.at += 1
        if character == "]":
            return None
        if character != "\\":
            return code(self.sound(character)), character
        if self.at < len(self.pattern) and (letter := self.pattern[self.at]) in "dwsDWS":
            self.at += 1
            return f"[{'^' if letter.isupper() else ''}{SETS[letter.lower()]}]", None
        if (found := CATEGORY.match(self.pattern, self.at)) is not None:
            self.at = found.end()
            return rf"\{found[1]}{{{found[2]}}}", None
        one = self.character(bracket=True)
        return code(one), one

    def sound(self, character: str) -> str:
        if "\ud800" <= character <= "\udfff":
            raise self.refusal("half a surrogate pair")
        return character

    def refusal(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"the pattern {self.pattern!r:.80}: {what} at {min(self.at, len(self.pattern))}")


def writable(members: str) -> str:
    """A class, without the characters that can't be written."""
    return f"[{'[' + members + ']' if '&&' in members else members}&&[^{CONTROL}]]"


def literal(character: str) -> str:
    """One character; nothing matches one that can't be written."""
    return r"[a&&b]" if character in UNWRITABLE else code(character)


def code(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
