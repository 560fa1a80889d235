"""Whether a quote inside a call's JSON closes its text. What follows the quote decides: models leave quotes of a text
without a backslash, and join texts as programs do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

QUOTES = "\"'"  # of JSON and Python
# opening quote → what may close it; of these quotes the same one alone
CLOSINGS = {'"': '"', "'": "'", "`": "`", "“": '”“"', "”": '”"', "„": '“”"', "‘": "’‘'", "’": "’'"}
OPENINGS = "".join(CLOSINGS)
FENCE = "```"  # of a block of code
COMMENTS = ("//", "#", "/*")
COMMAS = ",;，"  # what models write for a comma
BRACKET = {"}": "{", "]": "[", ")": "["}  # by what closes it, as JSON has it
CLOSERS = re.compile(r"[}\])\s]*")
IN_TEXT = re.compile(r"[{}\[\]]")
NOT_LAST = ("", "”", "’")  # in a text without its last quote: the text is empty, or has another quote there
PLUS = re.compile(rf"\+\s*[{OPENINGS}]")
# a quoted key and its colon, and a beginning of these; the same without an opening quote
OPEN_KEY = "|".join(rf"{quote}(?:[^{closing}\\\n]|\\.){{0,80}}" for quote, closing in CLOSINGS.items())
SHUT_KEY = "|".join(rf"{quote}(?:[^{close}\\\n]|\\.){{0,80}}[{close}]" for quote, close in CLOSINGS.items())
KEY = re.compile(rf"(?:{SHUT_KEY})\s*[:=：]")
PARTIAL_KEY = re.compile(rf"(?:{OPEN_KEY})\\?|(?:{SHUT_KEY})\s*")
WORD = re.compile(r"""[\w$.-]+["']?\s*[:=：]""")
PARTIAL_WORD = re.compile(r"""[\w$.-]+["']?\s*""")
# a semicolon that separates members, and what may become one
SEMICOLON = re.compile(r""";\s*(?:[}\]]|["']?[\w$.-]+["']?\s*[:=：])""")
PARTIAL_SEMICOLON = re.compile(r""";\s*["']?[\w$.-]*["']?\s*""")

Verdict: TypeAlias = Literal["end", "text", "join"]  # it closes the text, is text, or closes a part of the text


class StringPlace(NamedTuple):
    """Where a text stands.

    ends: markers that end the block. closers: what closes the brackets that are open, the innermost first. marked: a
    marker must end the block. key: the text is a key.
    """

    ends: tuple[str, ...] = ()
    closers: str = ""
    marked: bool = True
    key: bool = False

    @property
    def in_object(self) -> bool:
        """The text is a key or a value of an object."""
        return BRACKET.get(self.closers[:1]) == "{"


class Text:
    """What is known of a text before a quote."""

    def __init__(self) -> None:
        self.torn = 0  # how many quotes had no backslash
        self.depth = 0  # how many brackets are open
        self.unbalanced = False  # more brackets were closed than opened
        self.foreign = False  # a quote of JSON stands in the text
        self.held = False  # a marker stands in the text
        self._last, self._visible = "", ""  # the last character, and the last but white space
        # the quotes may be those of other texts, if there is an even number, or an odd one
        self._doubtful_even = self._doubtful_odd = False

    def add(self, text: str) -> None:
        """Add text."""
        self._last = text[-1:] or self._last
        self._visible = text.rstrip()[-1:] or self._visible
        self.foreign |= '"' in text
        for bracket in IN_TEXT.findall(text):
            self.depth += 1 if bracket in "{[" else -1
            self.unbalanced |= self.depth < 0

    def add_quote(self, quote: str, behind: str) -> None:
        """Count a quote that is text, unless it stands within a word. behind: the character behind the quote."""
        if self._last.isalnum() and behind.isalnum() and quote in "'’":
            return
        if not self.torn:  # the quote may close a text before an operator
            self._doubtful_even = bool(self._last.strip()) and self._last not in "([{=:" and not behind.isalnum()
        self.torn += 1
        self._doubtful_odd |= self._visible == ","  # the quote may open the next text

    @property
    def is_certain(self) -> bool:
        """A quote that may close the text surely does."""
        doubtful = self._doubtful_odd if self.torn % 2 else self._doubtful_even
        return not self.torn or not (self.depth or self.unbalanced or doubtful)

    @property
    def may_lack_quote(self) -> bool:
        """The text surely ends where its closing quote is missing."""
        return not (self.torn or self.unbalanced or self.foreign) and self._last not in NOT_LAST


def judge_quote(rest: str, place: StringPlace, text: Text) -> Verdict | None:
    """Decide about a quote; None if more text is needed. rest: the text behind the quote."""
    then = rest.lstrip()
    if not then:
        return None
    if place.key:
        return "end" if then[0] in ":=：" else "text"
    if (marked := comes_mark(then, place.ends)) is not False:
        return marked
    match then[0]:
        case ",":
            return judge_comma(then[1:], place, text)
        case "，":
            after = then[1:].lstrip()
            if place.in_object or not after:
                return match_verdict(after, KEY, PARTIAL_KEY, "end", "text") if after else None
            return "end" if after[0] in OPENINGS else "text"
        case "}" | "]" | ")":
            return judge_closers(then, place, text)
        case ":":
            return "text" if text.held or text.torn else "end"
        case ";":
            return match_verdict(then, SEMICOLON, PARTIAL_SEMICOLON, "end", "text")
        case "+" if text.torn % 2 == 0:
            return "join" if PLUS.match(then) else "text" if then[1:].strip() else None
    if then[0] not in OPENINGS or len(then) == len(rest):
        return "text"
    if not place.in_object:
        return "end"  # a comma is missing
    return match_verdict(then, KEY, PARTIAL_KEY, "end", "text" if text.torn else "join")


def judge_comma(rest: str, place: StringPlace, text: Text) -> Verdict | None:
    """The same for a quote before a comma. rest: the text behind the comma."""
    then = rest.lstrip()
    if not then:
        return None
    if text.torn and text.depth > 0:
        return "text"
    if not place.in_object or then[0] in "}]),;":
        return "end"
    if (marked := comes_mark(then, place.ends)) is not False:
        return marked
    if then[0] in OPENINGS:
        return match_verdict(then, KEY, PARTIAL_KEY, "end", "text") if text.torn else "end"
    if then[0].isalpha() or then[0] == "_":
        return match_verdict(then, WORD, PARTIAL_WORD, "end", "text")
    return "text" if text.torn else "end"


def judge_closers(then: str, place: StringPlace, text: Text) -> Verdict | None:
    """The same for a quote before closing brackets."""
    if text.torn and text.depth > 0:
        return "text"
    found = CLOSERS.match(then)
    run = "" if found is None else found[0]
    after, count = then[len(run) :], len("".join(run.split()))
    if not text.torn and count >= len(place.closers):
        return "end"
    if not after:
        return None
    if not text.torn:
        return match_verdict(after, KEY, PARTIAL_KEY, "end", "text") if after[0] in OPENINGS else "end"
    if (marked := comes_mark(after, place.ends)) is not False:
        return marked
    if after[0] == "," and count < len(place.closers):
        return judge_comma(after[1:], place._replace(closers=place.closers[count:]), text)
    if after[0] in ",;":
        return "end"
    return "end" if not place.marked and "".join(run.split()).startswith(place.closers) else "text"


def comes_mark(then: str, ends: Sequence[str]) -> Verdict | Literal[False] | None:
    """False if no marker and no comment comes next. A quote behind a marker shows that the marker is text."""
    for mark in ends:
        if then.startswith(mark):
            behind = then[len(mark) : len(mark) + 1]
            return None if not behind else "text" if behind in OPENINGS else "end"
    if then.startswith(COMMENTS):
        return "end"
    return None if any(mark.startswith(then) for mark in (*ends, *COMMENTS)) else False


def match_verdict(
    text: str, pattern: re.Pattern[str], partial: re.Pattern[str], found: Verdict, otherwise: Verdict
) -> Verdict | None:
    """`found` if the text begins with the pattern, None if the text may begin so, else `otherwise`."""
    if pattern.match(text):
        return found
    return None if partial.fullmatch(text) else otherwise
