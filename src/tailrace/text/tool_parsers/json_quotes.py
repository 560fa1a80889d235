"""Decide whether a quote inside a call's JSON closes its string. The text after the quote decides.

Models leave quotes in a string without a backslash, and join strings as programs do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

QUOTES = "\"'"  # of JSON and Python
# Opening quote → quotes that may close it. A straight opening quote is closed only by itself.
CLOSINGS = {'"': '"', "'": "'", "`": "`", "“": '”“"', "”": '”"', "„": '“”"', "‘": "’‘'", "’": "’'"}
OPENINGS = "".join(CLOSINGS)
FENCE = "```"  # of a block of code
COMMENTS = ("//", "#", "/*")
COMMAS = ",;，"  # what models write for a comma
BRACKET = {"}": "{", "]": "[", ")": "["}  # text's closing bracket → JSON's opening bracket
CLOSERS = re.compile(r"[}\])\s]*")
IN_TEXT = re.compile(r"[{}\[\]]")
NOT_LAST = ("", "”", "’")  # can't be last in a text without its closing quote: nothing, or another quote
PLUS = re.compile(rf"\+\s*[{OPENINGS}]")
# KEY matches a quoted key and its colon, WORD the same without an opening quote. PARTIAL_… match a beginning.
OPEN_KEY = "|".join(rf"{quote}(?:[^{closing}\\\n]|\\.){{0,80}}" for quote, closing in CLOSINGS.items())
SHUT_KEY = "|".join(rf"{quote}(?:[^{close}\\\n]|\\.){{0,80}}[{close}]" for quote, close in CLOSINGS.items())
KEY = re.compile(rf"(?:{SHUT_KEY})\s*[:=：]")
PARTIAL_KEY = re.compile(rf"(?:{OPEN_KEY})\\?|(?:{SHUT_KEY})\s*")
WORD = re.compile(r"""[\w$.-]+["']?\s*[:=：]""")
PARTIAL_WORD = re.compile(r"""[\w$.-]+["']?\s*""")
# a semicolon that separates members, and text that may become one
SEMICOLON = re.compile(r""";\s*(?:[}\]]|["']?[\w$.-]+["']?\s*[:=：])""")
PARTIAL_SEMICOLON = re.compile(r""";\s*["']?[\w$.-]*["']?\s*""")

Verdict: TypeAlias = Literal["end", "text", "join"]  # the quote closes the text, is text, or closes a part of it


class StringPlace(NamedTuple):
    """The place of a string.

    - `ends`: markers that end the block.
    - `closers`: the closing brackets of the open brackets, innermost first.
    - `marked`: a marker must end the block.
    - `key`: the string is a key.
    """

    ends: tuple[str, ...] = ()
    closers: str = ""
    marked: bool = True
    key: bool = False

    @property
    def in_object(self) -> bool:
        """Return True if the string is a key or a value of an object."""
        return BRACKET.get(self.closers[:1]) == "{"


class Text:
    """The known facts about a string's text before a quote."""

    def __init__(self) -> None:
        self.torn = 0  # Number of quotes without a backslash.
        self.depth = 0  # Number of open brackets.
        self.unbalanced = False  # More brackets were closed than opened.
        self.foreign = False  # The text holds a JSON quote.
        self.held = False  # The text holds a marker.
        self._last, self._visible = "", ""  # The last character, and the last one except white space.
        # The quotes may belong to other texts if their number is even, or if it is odd.
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
        """Count a quote that is text, unless it stands within a word. `behind`: the character after the quote."""
        if self._last.isalnum() and behind.isalnum() and quote in "'’":
            return
        if not self.torn:  # the quote may close a text before an operator
            self._doubtful_even = bool(self._last.strip()) and self._last not in "([{=:" and not behind.isalnum()
        self.torn += 1
        self._doubtful_odd |= self._visible == ","  # the quote may open the next text

    @property
    def is_certain(self) -> bool:
        """Return True if a quote that may close the string surely closes it."""
        doubtful = self._doubtful_odd if self.torn % 2 else self._doubtful_even
        return not self.torn or not (self.depth or self.unbalanced or doubtful)

    @property
    def may_lack_quote(self) -> bool:
        """Return True if the string surely ends where its closing quote is missing."""
        return not (self.torn or self.unbalanced or self.foreign) and self._last not in NOT_LAST


def judge_quote(rest: str, place: StringPlace, text: Text) -> Verdict | None:
    """Decide about a quote. Return None if more text is needed. `rest`: the text after the quote."""
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
    """Decide about a quote before a comma, like `judge_quote`. `rest`: the text after the comma."""
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
    """Decide about a quote before closing brackets, like `judge_quote`."""
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
    """Decide about a quote before a marker or a comment. Return False if neither comes next, None if more text is
    needed.

    A quote after a marker shows that the marker is text.
    """
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
    """Return `found` if the text begins with the pattern, None if more text may complete the pattern, else
    `otherwise`."""
    if pattern.match(text):
        return found
    return None if partial.fullmatch(text) else otherwise
