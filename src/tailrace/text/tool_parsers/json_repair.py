"""JSON inside a call, passed on as it comes and always valid. Usual mistakes of models are repaired on the way:

- a comma too many or too few, a semicolon for it; "=" for a colon, or none; brackets that are missing before the end of
  the call or doubled; comments
- strings in other quotes, in parts, without their last quote; words without quotes, Python's constants, numbers that
  JSON does not know
- quotes, control characters and unknown escapes inside a string

What can't be repaired is closed, so that what was sent is valid JSON all the same, unless a limit has cut the text.
Held back are a key up to its value; a comma, a quote that may close a string, and a number or word, up to what
follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing, Sink, drop_text, in_json
from tailrace.text.tool_parsers.json_quotes import COMMAS, COMMENTS, FENCE, OPENINGS, QUOTES, StringPlace
from tailrace.text.tool_parsers.json_strings import LOOKAHEAD, NAME, is_separator, json_string
from tailrace.text.tool_parsers.python_values import NOT_FINITE, NUMBER, convert_literal

# opening bracket → how the text closes it, how JSON opens it, how JSON closes it
BRACKETS = {"{": ("}", "{", "}"), "[": ("]", "[", "]"), "(": (")", "[", "]")}
MAX_NESTING = 500  # of brackets; readers of JSON give up at about 1,000, less what else is on the stack
SCALAR = re.compile(r"[\w$.+-]*")
WORDS = re.compile(r"[^,{}\[\]()\"'\n\r<]*")  # of a text without quotes
NOT_JSON_WHITE = re.compile(r"[^ \t\n\r]")
COLON = re.compile(r"""["']\s*[:=：]""")  # behind a key whose first quote is missing
PARTIAL_COLON = re.compile(r"""["']\s*""")
VALUE = "{[(-0123456789" + OPENINGS  # what shows that a colon is missing
LINE = re.compile(r"[^\n]*")
NOT_STAR = re.compile(r"[^*]*")
AFTER_VALUE = ",}])\n\r"
NO_VALUE = ",;}])"  # where a value is missing
CONSTANTS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def json_value(parser: CallParser, sink: Sink, ends: Sequence[str] = ()) -> Parsing[None]:
    """Pass on one value.

    Args:
        ends: markers. What is open before one of these is closed.

    Raises:
        NotACallError: the next text can't be a value, or is nested too deep. What was sent before is a whole value; if
            a limit has cut the text, it is JSON so far.
    """
    yield from JsonRepair(parser, sink, ends).read()


class JsonRepair:
    """Reads one value of JSON and passes valid JSON on. See `json_value`."""

    def __init__(self, parser: CallParser, sink: Sink, ends: Sequence[str]) -> None:
        self.parser, self._sink, self.ends = parser, sink, tuple(ends)
        self._open: list[tuple[str, str]] = []  # how the text and JSON close what is open
        self._filled: list[bool] = []  # there is a member
        self._doubled: dict[int, bool] = {}  # by the number of open brackets
        self._comma: str | None = None  # white space behind a comma that is not sent
        self._before = ""  # is sent before what comes next
        self._in_key = False  # a key is being read, which waits for its value
        self._missing = ""  # what would complete the value that is being read

    def pass_text(self, text: str) -> None:
        """Pass on text, with what waits before it."""
        if self._in_key:
            self._before += text
        elif text:
            self._sink(self._before + text)
            self._before = ""

    def read(self) -> Parsing[None]:
        """Read the value. If it can't be read to its end, complete what was sent."""
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
        """Read the value, and the members of all in it."""
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
            self._doubled[len(self._open)] = True  # a brace that was written twice, as templates of templates have it
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
        """Read a key and its colon. White space may stand for the colon before a text, a number or a bracket."""
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
        """Where a string stands."""
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
        """Close brackets up to the innermost one that this character closes; all of these for ""."""
        self.pass_text(self._comma or "")
        self._comma = None
        while self._open:
            closing, end = self._open.pop()
            self._filled.pop()
            self.pass_text(end)
            if closing == char:
                return

    def read_scalar(self) -> Parsing[None]:
        """Read a number or a word, or some words."""
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
        """True if what comes next, after white space, can follow a value. Reads nothing."""
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
        """White space goes behind the comma that is not sent."""
        text = NOT_JSON_WHITE.sub(" ", text)
        if self._comma is None:
            self.pass_text(text)
        else:
            self._comma += text


def read_colon(parser: CallParser, may_lack: bool) -> Parsing[None]:
    """Read the colon behind a key. may_lack: white space stands for it before a text, a number or a bracket."""
    if (yield from parser.accept("=")):
        yield from parser.accept(">")
    elif (yield from parser.peek()) in ":：":
        parser.take(1)
    elif not (may_lack and (yield from parser.peek()) in VALUE):
        raise NotACallError(":")


def scalar_of(text: str) -> str:
    """A number or a word as JSON. A word that is no constant is a text."""
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
    """A text that holds an object, as JSON; None if it holds none."""
    parts: list[str] = []

    def read_json_object(parser: CallParser) -> Parsing[None]:
        yield from parser.read_whitespace()
        if (yield from parser.peek()) != "{":
            raise NotACallError("{")
        yield from json_value(parser, parts.append)
        yield from parser.read_whitespace()

    parser = CallParser(read_json_object, "", None, {}, 0, False)
    parser.cut = True  # an object that is not whole is none, but its last brackets may be missing
    parser.closes = True
    parser.feed(text, ended=True)
    found = "".join(parts)
    return found if not parser.unread and is_object(found) else None


def is_object(text: str) -> bool:
    """True if the text is an object of JSON."""
    try:
        return isinstance(json.loads(text, parse_int=str, parse_float=str), dict)
    except (ValueError, RecursionError):
        return False
