"""A block of tool calls as it comes, and how it is read: by a parser that is a generator and waits wherever the text ends.

A parser takes what it understands, in order, and never goes back, so a token costs no more late in a call than early. What has been
taken since something last went out is held: if it turns out to be no call it is given back as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

T = TypeVar("T")
Read: TypeAlias = Generator[None, None, T]  # yields where it needs more text
Sink: TypeAlias = Callable[[str], object]
Tools: TypeAlias = Mapping[str, Mapping[str, Any]]  # function → parameter → its schema

WHITE = re.compile(r"\s*")
WORD = re.compile(r"[\w.:/@$-]*")
SHORT_ID = 9


class NotACallError(Exception):
    """What comes next has no place in a call."""


class ToolCall(NamedTuple):
    """What is new of the place-th call: at first its name, and its id if the model's format has one; then its arguments, bit by bit."""

    place: int
    name: str = ""
    arguments: str = ""
    id: str | None = None


class Block:
    """What stands between two markers, or is an answer by itself.

    Args:
        read: the parser. opening: what has been read already, given back if there is no call. closing: the marker that ends it, if any.
        tools: what the request declares. place: the number of the first call. bare: no marker says that these are calls.
    """

    def __init__(
        self,
        read: Callable[[Block], Read[None]],
        opening: str,
        closing: str | None,
        tools: Tools,
        place: int,
        bare: bool,
    ) -> None:
        self.closing, self.tools, self.bare = closing, tools, bare
        self.text, self.at = "", 0  # what is not taken yet starts here
        self.over = False
        self._held = [opening]
        self.undecided = True  # a call has begun, or may have, and its name is not out
        self.unfinished = False  # its name is out, and its arguments are not whole
        self.short_ids = False
        self._first = self._place = place
        self._closed = False
        self._said: list[str] = []
        self._out: list[ToolCall] = []
        self._parser = read(self)

    def feed(self, text: str) -> list[ToolCall]:
        """More text → what can go out of it. It may be `over` then: what is `held` is text, what is `unread` comes behind the block."""
        self.text, self.at = self.unread + text, 0
        try:
            next(self._parser)
        except (StopIteration, NotACallError):
            self.over = True
        self._utter()
        out, self._out = self._out, []
        return out

    @property
    def held(self) -> str:
        """Taken since something last went out."""
        return "".join(self._held)

    @property
    def unread(self) -> str:
        """Not taken."""
        return self.text[self.at :]

    @property
    def left(self) -> str:
        """The text ends here: what was to become a call and did not. The cut wrapper of a call that is out is nothing."""
        return self.held + self.unread if self.undecided else ""

    @property
    def num_calls(self) -> int:
        """Calls whose names are out."""
        return self._place - self._first

    @property
    def stray(self) -> str | None:
        """The closing marker, if the block has ended without it though it had calls."""
        return None if self._closed or not self.num_calls else self.closing

    # ---- for parsers: taking text

    def peek(self) -> Read[str]:
        """The next character."""
        while self.at >= len(self.text):
            yield
        return self.text[self.at]

    def take(self, length: int) -> str:
        """That much of the text that is here."""
        part = self.text[self.at : self.at + length]
        self.at += len(part)
        self._held.append(part)
        return part

    def literal(self, wanted: str) -> Read[bool]:
        """Take it, if it is next."""
        while (rest := self.text[self.at : self.at + len(wanted)]) != wanted:
            if not wanted.startswith(rest):
                return False
            yield
        self.take(len(wanted))
        return True

    def expect(self, wanted: str) -> Read[None]:
        """Take it; raise NotACallError if it isn't next."""
        if not (yield from self.literal(wanted)):
            raise NotACallError(wanted)

    def span(self, pattern: re.Pattern[str], sink: Sink) -> Read[None]:
        """Hand on what matches, up to the first character that doesn't. The pattern is a class of characters, any number of them."""
        while True:
            found = pattern.match(self.text, self.at)
            sink(self.take(len(found[0]) if found else 0))
            if self.at < len(self.text):
                return
            yield

    def white(self) -> Read[None]:
        """Take white space, if there is any."""
        yield from self.span(WHITE, forget)

    def word(self) -> Read[str]:
        """A name of a function or a call; raise NotACallError if there is none."""
        parts: list[str] = []
        yield from self.span(WORD, parts.append)
        if not (name := "".join(parts)):
            raise NotACallError("a name")
        return name

    def until(self, marker: str) -> Read[str]:
        """The text up to the marker, which is taken too. The block ends before that: then it is no call."""
        parts: list[str] = []
        while (end := self.text.find(marker, self.at)) < 0:
            if self.closing is not None and self.closing in self.unread:
                raise NotACallError(marker)
            keep = max(overlap(self.unread, mark) for mark in (marker, self.closing or ""))
            parts.append(self.take(len(self.text) - self.at - keep))
            yield
        if self.closing is not None and 0 <= self.text.find(self.closing, self.at) < end:
            raise NotACallError(marker)
        parts.append(self.take(end - self.at))
        self.take(len(marker))
        return "".join(parts)

    def close(self) -> Read[bool]:
        """Take the closing marker, if it is next behind white space."""
        if self.closing is None:
            return False
        yield from self.white()
        self._closed = yield from self.literal(self.closing)
        if self._closed and not self.undecided:
            self._held.clear()
        return self._closed

    # ---- for parsers: letting calls out

    def begin(self, first: str) -> Read[None]:
        """A call begins with this, or it is NotACallError; what lies between it and the call before is wrapper."""
        yield from self.expect(first)
        if not self.undecided:
            self._held = [first]
        self.undecided = True

    def known(self, name: str) -> None:
        """Raise NotACallError if there is no name or, where no marker says that this is a call, if it is no declared tool's."""
        if not name or (self.bare and self.tools and name not in self.tools):
            raise NotACallError(name)

    def name(self, name: str, id: str | None = None) -> None:
        """It is a call, of this function: from here on `say` lets its arguments out."""
        if not name:
            raise NotACallError("a name")
        self._out.append(ToolCall(self._place, name, "", uuid4().hex[:SHORT_ID] if self.short_ids and not id else id))
        self._place += 1
        self._held.clear()
        self.undecided, self.unfinished = False, True

    def say(self, part: str) -> None:
        """More of its arguments."""
        if part:
            self._said.append(part)
            self._held.clear()

    def end(self) -> None:
        """The call is whole; what was taken behind its arguments is wrapper."""
        self._utter()
        self._held.clear()
        self.unfinished = False

    def whole(self, name: str, arguments: Mapping[str, str]) -> None:
        """A whole call, each of its arguments in JSON."""
        self.name(name)
        self.say("{" + ", ".join(f"{in_json(key)}: {value}" for key, value in arguments.items()) + "}")
        self.end()

    def _utter(self) -> None:
        if self._said:
            self._out.append(ToolCall(self._place - 1, arguments="".join(self._said)))
            self._said.clear()


def overlap(text: str, marker: str) -> int:
    """Characters at the end of the text that begin the marker."""
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0)


def in_json(value: Any) -> str:
    """The value as JSON."""
    return msgspec.json.encode(value).decode()


def forget(text: str) -> None:
    """A sink for what is wrapper."""
