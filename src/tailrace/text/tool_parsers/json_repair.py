"""JSON inside a call, passed on as it arrives and always valid. Usual mistakes of models are repaired:

- surplus and missing commas, semicolons instead; missing colons, "=" instead; comments
- brackets that are doubled, or missing before the end of the call
- strings in other quotes, in parts, without their last quote
- words without quotes, Python's constants, numbers that JSON does not know
- quotes, control characters and unknown escapes inside a string

After any other mistake, the open brackets and strings are closed. The sent text is then valid JSON, unless a limit
has cut the text. A key waits until its value comes. A comma, a number, a word, and a quote that may close a string
wait until the next text comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing, Sink, drop_text, in_json
from tailrace.text.tool_parsers.json_quotes import COMMAS, COMMENTS, FENCE, OPENINGS, QUOTES, StringPlace
from tailrace.text.tool_parsers.json_strings import LOOKAHEAD, NAME, is_separator, json_string
from tailrace.text.tool_parsers.python_values import NOT_FINITE, NUMBER, convert_literal

# opening bracket → the text's closing bracket, JSON's opening bracket, JSON's closing bracket
BRACKETS = {"{": ("}", "{", "}"), "[": ("]", "[", "]"), "(": (")", "[", "]")}
MAX_NESTING = 500  # of brackets; readers of JSON fail at about 1,000, minus other calls on the stack
SCALAR = re.compile(r"[\w$.+-]*")
WORDS = re.compile(r"[^,{}\[\]()\"'\n\r<]*")  # of a text without quotes
NOT_JSON_WHITE = re.compile(r"[^ \t\n\r]")
COLON = re.compile(r"""["']\s*[:=：]""")  # after a key whose first quote is missing
PARTIAL_COLON = re.compile(r"""["']\s*""")
VALUE = "{[(-0123456789" + OPENINGS  # characters that show a missing colon
LINE = re.compile(r"[^\n]*")
NOT_STAR = re.compile(r"[^*]*")
AFTER_VALUE = ",}])\n\r"
NO_VALUE = ",;}])"  # characters that show a missing value
CONSTANTS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def json_value(parser: CallParser, sink: Sink, ends: Sequence[str] = ()) -> Parsing[None]:
    """Pass on one value.

    Args:
        ends: markers. Brackets and strings that are open before such a marker are closed.

    Raises:
        NotACallError: the next text can't be a value, or is nested too deep. The sent text is a whole value. If a limit
            has cut the text, the sent text is the beginning of JSON.
    """
    yield from JsonRepair(parser, sink, ends).read()


class JsonRepair:
    """A reader of one JSON value that passes valid JSON on. See `json_value`."""

    def __init__(self, parser: CallParser, sink: Sink, ends: Sequence[str]) -> None:
        self.parser, self._sink, self.ends = parser, sink, tuple(ends)
        self._open: list[tuple[str, str]] = []  # Open brackets: how the text and JSON close them.
        self._filled: list[bool] = []  # Each open bracket has a member.
        self._doubled: dict[int, bool] = {}  # Doubled braces, by the number of open brackets.
        self._comma: str | None = None  # White space after a comma that was not sent.
        self._before = ""  # This text is sent before the next text.
        self._in_key = False  # A key is being read and waits for its value.
        self._missing = ""  # This text would complete the value that is being read.

    def pass_text(self, text: str) -> None:
        """Pass on text, after the text that waits before it."""
        if self._in_key:
            self._before += text
        elif text:
            self._sink(self._before + text)
            self._before = ""

    def read(self) -> Parsing[None]:
        """Read the value. If the value can't be read to its end, complete the text that was sent."""
        try:
            yield from self.read_members()
        except NotACallError:
            if not self.parser.cut:
                self._before, self._comma, self._in_key = "", None, False
                with self.parser.keep_held():
                    self.pass_text(self._missing)
                    self.close("")
            elif self._in_key:
                self._sink(self._before)
            raise

    def read_members(self) -> Parsing[None]:
        """Read the value, with all nested members."""
        yield from self.value()
        while self._open:
            yield from self.read_gap()
            if self.parser.closed_by_end:
                self.close("")
                continue
            char = yield from self.parser.peek()
            if char in COMMAS:
                self.parser.take(1)
                self._comma = self._comma or ""
            elif char in ")]}" and any(char == closing for closing, _ in self._open):
                self.parser.take(1)
                doubled = self._doubled.pop(len(self._open), False)
                self.close(char)
                if doubled:
                    yield from self.parser.read_whitespace()
                    yield from self.parser.accept("}")
            elif (yield from self.parser.comes_one(self.ends)):
                self.close("")
            else:
                yield from self.member()

    def member(self) -> Parsing[None]:
        """Read a member of an object or a list."""
        if self._open[-1][1] == "}" and not self._filled[-1] and (yield from self.parser.accept("{")):
            self._doubled[len(self._open)] = True  # a doubled brace, as in templates of templates
            return
        self._before = ("," if self._filled[-1] else "") + (self._comma or "")
        self._comma, self._filled[-1] = None, True
        if self._open[-1][1] == "}":
            self._in_key = True
            yield from self.key()
            nothing = (yield from self.parser.peek()) in NO_VALUE
            self._in_key = False
            if nothing:
                self.pass_text("null")
                return
        yield from self.value()

    def key(self) -> Parsing[None]:
        """Read a key and its colon. White space may replace the colon before a text, a number or a bracket."""
        parser = self.parser
        quoted = (yield from parser.peek()) in OPENINGS
        if quoted:
            yield from json_string(parser, self.pass_text, self.place(key=True))
        else:
            yield from self.name()
        apart = (yield from parser.peek()).isspace()
        yield from self.read_gap()
        yield from read_colon(parser, quoted and apart)
        self.pass_text(":")
        yield from parser.accept(":")
        yield from self.read_gap()

    def name(self) -> Parsing[None]:
        """Read a key without quotes, or without its first quote."""
        parts: list[str] = []
        yield from self.parser.read_span(NAME, parts.append)
        if not (name := "".join(parts)):
            raise NotACallError("a key")
        self.pass_text(in_json(name))
        while PARTIAL_COLON.fullmatch(self.parser.unread) and not self.parser.ended:
            yield from self.parser.wait_for_text()
        if COLON.match(self.parser.unread):
            self.parser.take(1)

    def place(self, key: bool = False) -> StringPlace:
        """Return the place of a string."""
        closers = "".join(end for _, end in reversed(self._open))
        return StringPlace(self.ends, closers + self.parser.around, self.parser.closing is not None, key)

    def value(self) -> Parsing[None]:
        """Read a string, a number or a word, or open brackets."""
        char = yield from self.parser.peek()
        if char in OPENINGS and not (yield from self.parser.is_next(FENCE)):
            self._missing = '"'
            yield from json_string(self.parser, self.pass_text, self.place())
        elif char in BRACKETS and len(self._open) < MAX_NESTING:
            closing, ours, end = BRACKETS[self.parser.take(1)]
            self._open.append((closing, end))
            self._filled.append(False)
            self.pass_text(ours)
        else:
            yield from self.read_scalar()
        self._missing = ""

    def close(self, char: str) -> None:
        """Close brackets up to the innermost one that this character closes. The empty string closes all brackets."""
        self.pass_text(self._comma or "")
        self._comma = None
        while self._open:
            closing, end = self._open.pop()
            self._filled.pop()
            self.pass_text(end)
            if closing == char:
                return

    def read_scalar(self) -> Parsing[None]:
        """Read a number, a word or several words."""
        parts: list[str] = []
        yield from self.parser.read_span(SCALAR, parts.append)
        if not (text := "".join(parts)):
            raise NotACallError((yield from self.parser.peek()))
        if self._open and not (yield from self.after_value()):
            yield from self.parser.read_span(WORDS, parts.append)
            if not (yield from self.after_value()):
                text = "".join(parts)
                if self.parser.cut:
                    self.pass_text(text)
                raise NotACallError(text)
            text = "".join(parts).strip()
        self.pass_text(scalar_of(text))

    def after_value(self) -> Parsing[bool]:
        """Return True if the next text, after white space, can follow a value. Read nothing."""
        parser = self.parser
        while True:
            white = WHITE.match(parser.text, parser.at)
            at = white.end() if white else parser.at
            rest = parser.text[at : at + LOOKAHEAD]
            if "\n" in parser.text[parser.at : at] or rest.startswith((*AFTER_VALUE, *COMMENTS, *self.ends)):
                return True
            if at > parser.at and rest.startswith(tuple(QUOTES)):  # a comma is missing
                return True
            if rest.startswith(";") and (yield from is_separator(parser, at)):
                return True
            if parser.ended and not rest:
                return parser.closes
            if parser.ended or (rest and not any(mark.startswith(rest) for mark in (*COMMENTS, *self.ends))):
                return False
            yield from parser.wait_for_text()

    def read_gap(self) -> Parsing[None]:
        """Pass on white space and drop comments."""
        while True:
            yield from self.parser.read_span(WHITE, self.add_white)
            if self.parser.closed_by_end or (yield from self.parser.peek()) not in "/#":
                return
            if (yield from self.parser.accept("/*")):
                yield from self.skip_comment()
            elif (yield from self.parser.accept("//")) or (yield from self.parser.accept("#")):
                yield from self.parser.read_span(LINE, drop_text)
            else:
                return

    def skip_comment(self) -> Parsing[None]:
        """Read up to the end of a comment."""
        while not (yield from self.parser.accept("*/")):
            yield from self.parser.peek()
            self.parser.take(1)
            yield from self.parser.read_span(NOT_STAR, drop_text)

    def add_white(self, text: str) -> None:
        """Add white space after the comma that was not sent, else pass the white space on."""
        text = NOT_JSON_WHITE.sub(" ", text)
        if self._comma is None:
            self.pass_text(text)
        else:
            self._comma += text


def read_colon(parser: CallParser, may_lack: bool) -> Parsing[None]:
    """Read the colon after a key. `may_lack`: white space replaces it before a text, a number or a bracket."""
    if (yield from parser.accept("=")):
        yield from parser.accept(">")
    elif (yield from parser.peek()) in ":：":
        parser.take(1)
    elif not (may_lack and (yield from parser.peek()) in VALUE):
        raise NotACallError(":")


def scalar_of(text: str) -> str:
    """Return a number or a word as JSON. A word that is no constant becomes a string."""
    sign = text[:1] if text[:1] in "+-" else ""
    if NUMBER.fullmatch(text.removeprefix("-")):
        return text
    if (word := text.removeprefix(sign).lower()) in NOT_FINITE:
        return "null"
    if not sign and word in CONSTANTS:
        return CONSTANTS[word]
    number = convert_literal(text.removeprefix("+")) if re.match(r"[+-]?\.?[0-9]", text) else None
    return number if number is not None else in_json(text)


def object_of(text: str) -> str | None:
    """Return the object that a text holds, as JSON. Return None if the text holds no object."""
    parts: list[str] = []

    def read_json_object(parser: CallParser) -> Parsing[None]:
        yield from parser.read_whitespace()
        if (yield from parser.peek()) != "{":
            raise NotACallError("{")
        yield from json_value(parser, parts.append)
        yield from parser.read_whitespace()

    parser = CallParser(read_json_object, "", None, {}, 0, False)
    parser.cut = True  # reject an incomplete object, except if only its last brackets are missing
    parser.closes = True
    parser.feed(text, ended=True)
    found = "".join(parts)
    return found if not parser.unread and is_object(found) else None


def is_object(text: str) -> bool:
    """Return True if the text is a JSON object."""
    try:
        return isinstance(json.loads(text, parse_int=str, parse_float=str), dict)
    except (ValueError, RecursionError):
        return False
