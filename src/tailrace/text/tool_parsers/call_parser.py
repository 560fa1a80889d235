"""Incremental parser of a block of tool calls. A format's parser is a generator that yields when it needs more text.

A parser only reads forward, so a token costs the same late in a call as early. Text that was read since the last send
is held. If the text turns out to be no call, the parser gives it back unchanged.

(More than 300 lines: reading, sending and giving back share one state.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from tailrace.text.tool_parsers.resolve import ANYTHING, Declared

T = TypeVar("T")
Parsing: TypeAlias = Generator[None, None, T]  # yields when it needs more text
Sink: TypeAlias = Callable[[str], object]
ToolSchemas: TypeAlias = Mapping[str, Declared]  # function → the schema of its arguments

WHITE = re.compile(r"\s*")
WORD = re.compile(r"[\w.:/@$-]*")
SHORT_ID = 9


class NotACallError(Exception):
    """An error: the next text does not fit into a call."""


class ToolCall(NamedTuple):
    """A new part of call number `place`.

    The first part has the name, and the id if the format has one. The following parts are pieces of the arguments.
    """

    place: int
    name: str = ""
    arguments: str = ""
    id: str | None = None


class CallParser:
    """A parser of the text between two markers, or of a whole answer.

    Args:
        read: the format's parser.
        opening: text that was read before. It is given back if there is no call.
        closing: the marker that ends the block. None means that the format lacks one.
        tools: the parameters that the request declares.
        place: the number of the first call.
        bare: no marker shows that these are calls.
    """

    def __init__(
        self,
        read: Callable[[CallParser], Parsing[None]],
        opening: str,
        closing: str | None,
        tools: ToolSchemas,
        place: int,
        bare: bool,
    ) -> None:
        self.opening, self.closing, self.tools, self.bare = opening, closing, tools, bare
        self.text, self.at = "", 0  # text before `at` has been read
        self.over = False
        self.ended = False  # The text is complete.
        self.gave_back = False  # Text was taken back after the last text was added.
        self.cut = False  # The model would have written more text.
        self.closes = False  # The end of the text closes what is open, as a marker does.
        self._held = [opening]
        self._again = 0  # Characters that were sent, were given back, and will be read again.
        self.undecided = True  # A call has begun or may have begun, and its name was not sent.
        self.unfinished = False  # A name was sent, and its arguments are incomplete.
        self.doubtful = False  # A call was sent that may lack arguments.
        self.passing = False  # The text up to a marker is content.
        self.short_ids = False
        self.around = ""  # Closing brackets of the brackets around the arguments, innermost first.
        self._first = self._place = place
        self._closed = False
        self._named: tuple[str, str | None] | None = None  # A call that waits for arguments: name, id.
        self._fresh, self._begun = True, 0  # No call has begun. Index in _held where the last call began.
        self._rejected: list[str] = []  # Objects that were no calls, until a real call's name comes.
        self._arguments: list[str] = []
        self._out: list[ToolCall | str] = []
        self._parser = read(self)
        self.feed("")  # the block may consist of a marker only

    def feed(self, text: str, ended: bool = False) -> list[ToolCall | str]:
        """Add text. Return the new parts of calls, and the content between calls.

        Afterwards the block may be `over`. Then `held` is content, and `unread` is the text after the block. `ended`:
        the text is complete, so the block is over.
        """
        self.text, self.at = self.unread + text, 0
        self.ended, self.gave_back = ended, False
        try:
            next(self._parser)
        except (StopIteration, NotACallError):
            if self._named is not None and self.undecided and self.finished:
                self.start_call(*self._named)  # the text ends before the arguments
                self.add_arguments("" if self.cut else "{}")
            self.over = True
            self._unread_later_opening()
        self._emit_arguments()
        out, self._out = self._out, []
        return out

    @property
    def finished(self) -> bool:
        """Return True if the text is complete and was read to its end."""
        return self.ended and self.at >= len(self.text)

    @property
    def held(self) -> str:
        """Return the text that was read since the last send."""
        return "".join(self._held)

    @property
    def unread(self) -> str:
        """Return the text that was not read."""
        return self.text[self.at :]

    @property
    def cut_call(self) -> bool:
        """Return True if a call was sent that may differ from what the model meant."""
        return self.unfinished or self.doubtful

    @property
    def num_calls(self) -> int:
        """Return the number of calls whose names were sent."""
        return self._place - self._first

    @property
    def missing_closing(self) -> str | None:
        """Return the closing marker if the block had calls and ended without this marker."""
        return None if self._closed or not self.num_calls else self.closing

    def _unread_later_opening(self) -> None:
        """Take back the text from the last opening marker on, if a value seemed to hold that marker.

        Only the last marker counts, so no text is read more than twice.
        """
        held = self.held
        opening = self.opening.strip()
        if not opening or not (self.undecided or self.unfinished):
            return
        if (again := held.rfind(opening)) > (held.find(opening) if self.undecided else -1):
            self.text, self.at, self.gave_back = held[again:] + self.unread, 0, True
            self._held = [held[:again]]

    # ---- for parsers: reading text

    def wait_for_text(self) -> Parsing[None]:
        """Wait for more text; raise NotACallError if none comes."""
        if self.ended:
            raise NotACallError("the end")
        yield

    def peek(self) -> Parsing[str]:
        """Return the next character. Read nothing."""
        while self.at >= len(self.text):
            yield from self.wait_for_text()
        return self.text[self.at]

    def take(self, length: int) -> str:
        """Read up to `length` characters of the available text."""
        part = self.text[self.at : self.at + length]
        self.at += len(part)
        if self._again:
            again = min(self._again, len(part))
            self._again -= again
            self._held.append(part[again:])
        else:
            self._held.append(part)
        return part

    def is_next(self, wanted: str) -> Parsing[bool]:
        """Return True if the wanted text comes next. Read nothing."""
        while (rest := self.text[self.at : self.at + len(wanted)]) != wanted:
            if self.ended or not wanted.startswith(rest):
                return False
            yield
        return True

    def accept(self, wanted: str) -> Parsing[bool]:
        """Read the wanted text if it comes next. Return True if it does."""
        if not (yield from self.is_next(wanted)):
            return False
        self.take(len(wanted))
        return True

    def expect(self, wanted: str) -> Parsing[None]:
        """Read the wanted text; raise NotACallError if it does not come next."""
        if not (yield from self.accept(wanted)):
            raise NotACallError(wanted)

    def read_span(self, pattern: re.Pattern[str], sink: Sink) -> Parsing[None]:
        """Pass on text up to the first character that does not match. The pattern must be a repeated class of
        characters."""
        while True:
            found = pattern.match(self.text, self.at)
            sink(self.take(len(found[0]) if found else 0))
            if self.ended or self.at < len(self.text):
                return
            yield

    def read_whitespace(self) -> Parsing[None]:
        """Read white space, if any."""
        yield from self.read_span(WHITE, drop_text)

    def read_name(self) -> Parsing[str]:
        """Read the name of a function or a call. Raise NotACallError if no name comes next."""
        parts: list[str] = []
        yield from self.read_span(WORD, parts.append)
        if not (name := "".join(parts)):
            raise NotACallError("a name")
        return name

    def read_until(self, marker: str, sink: Sink | None = None) -> Parsing[str]:
        """Read the text before the marker, and the marker. Raise NotACallError if the block ends first.

        In case of the error, all text before the block's end has been read, however the text was split. `sink`: see
        `up_to`.
        """
        text, found = yield from self.up_to(marker, *(() if self.closing is None else (self.closing,)), sink=sink)
        if found != marker:
            raise NotACallError(marker)
        self.take(len(marker))
        return text

    def up_to(self, *marks: str, sink: Sink | None = None) -> Parsing[tuple[str, str]]:
        """Read the text before the first of the marks. Return the text and the mark, which is not read.

        Without a mark, return the text up to the end, and the empty string. `sink`: it gets the text as it is read.
        """
        sink = sink or drop_text
        parts: list[str] = []
        while True:
            ends = [(end, mark) for mark in marks if (end := self.text.find(mark, self.at)) >= 0]
            # an incomplete mark may begin before a complete one
            keep = 0 if self.ended else max(partial_marker(self.unread, mark) for mark in marks)
            if ends and (end := min(ends))[0] <= len(self.text) - keep:
                parts.append(self.take(end[0] - self.at))
                sink(parts[-1])
                return "".join(parts), end[1]
            parts.append(self.take(len(self.text) - self.at - keep))
            sink(parts[-1])
            if self.ended:
                return "".join(parts), ""
            yield

    def content_up_to(self, closing: str) -> Parsing[None]:
        """Send the text before a marker as content, as it arrives. Drop the block's markers."""
        self._held.clear()
        self.undecided, self.passing = False, True
        while (end := self.text.find(closing, self.at)) < 0:
            self.add_content(self.take(len(self.text) - self.at - partial_marker(self.unread, closing)))
            yield from self.wait_for_text()
        self.add_content(self.take(end - self.at))
        self.take(len(closing))
        self.drop()

    def give_back(self, text: str) -> None:
        """Take back `text`, which was read last."""
        held, self.gave_back = self.held, True
        self._again += max(0, len(text) - len(held))
        self._held = [held[: max(0, len(held) - len(text))]]
        self.text, self.at = text + self.unread, 0

    def mark(self) -> int:
        """Return the place for `read_from` and `give_back_from`. It is valid until something is sent."""
        return len(self._held)

    @contextmanager
    def keep_held(self) -> Iterator[None]:
        """Restore the held text after this context, even if the context sends something."""
        held = self._held.copy()
        yield
        self._held = held

    def read_from(self, place: int) -> str:
        """Return the text that was read since `mark` returned the place."""
        return "".join(self._held[place:])

    def give_back_from(self, place: int) -> None:
        """Take back the text that was read since `mark` returned the place."""
        text, self.gave_back = self.read_from(place), True
        del self._held[place:]
        self.text, self.at = text + self.unread, 0

    def drop(self) -> None:
        """Drop the held text, which is no content."""
        self._held.clear()
        self.undecided = self.passing = False

    def close(self) -> Parsing[bool]:
        """Read the closing marker if it comes next after white space. Return True if it does."""
        if self.closing is None:
            return False
        yield from self.read_whitespace()
        self._closed = yield from self.accept(self.closing)
        if self._closed and not self.undecided:
            self._held.clear()
        return self._closed

    # ---- for parsers: sending calls

    def begin_call(self, first: str) -> Parsing[None]:
        """Start a call, which must begin with the text `first`. Otherwise raise NotACallError.

        Text since the previous call was its wrapper and is dropped. If the marker that opened the block is this text,
        it has been read already.
        """
        if self._fresh and first and self.opened_by(first):
            self._fresh = False
            return
        self._fresh = False
        yield from self.expect(first)
        if not self.undecided:
            self._held = [first]
        while first and first != "{" and (yield from self.accept(first)):
            pass  # some models write a marker twice
        self._begun = len(self._held) - 1
        self.undecided, self._named = True, None

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the markers of the block. Brackets and strings that are open before such a marker lack their end."""
        return tuple(mark for mark in (self.closing, self.opening.strip()) if mark)

    def comes_one(self, marks: Iterable[str]) -> Parsing[bool]:
        """Return True if one of the texts comes next, or if the text's end closes what is open. Read nothing."""
        for mark in marks:
            if (yield from self.is_next(mark)):
                return True
        return self.closed_by_end

    @property
    def closed_by_end(self) -> bool:
        """Return True if all text was read, and its end closes what is open."""
        return self.finished and self.closes

    def opened_by(self, text: str) -> bool:
        """Return True if the marker that opened the block ends with this text. Then the text has been read."""
        return self.opening.endswith(text)

    def reject_call(self) -> None:
        """Treat the text since `begin_call` as content, even if the block also has calls."""
        text = "".join(self._held[self._begun :])
        if self.num_calls:
            self._out.append(text)
            self._held.clear()
            self.undecided = False
        else:
            self._rejected.append(text)

    def add_content(self, text: str) -> None:
        """Send text that is content although it stands in the block."""
        if text:
            self._emit_arguments()
            self._out.append(text)
            self._held.clear()

    def require_declared(self, name: str) -> None:
        """Raise NotACallError if the name is empty.

        Raise it also if no marker shows that this is a call, and no declared tool has this name.
        """
        if not name or (self.bare and self.tools and name not in self.tools):
            raise NotACallError(name)

    def require_name(self, name: str) -> None:
        """Raise NotACallError if the name is empty."""
        if not name:
            raise NotACallError("a name")

    def parameters_of(self, name: str) -> Declared:
        """Return what the request declares of a function's arguments."""
        return self.tools.get(name, ANYTHING)

    def name_call(self, name: str | None, id: str | None = None) -> None:
        """Store the name of a call for which arguments may be missing. None: the following text is no arguments."""
        self._named = None if self.bare or name is None else (name, id)

    def start_call(self, name: str, id: str | None = None) -> None:
        """Send the function's name. Afterwards `add_arguments` sends its arguments."""
        self.require_name(name)
        if self._rejected:
            self._out.append("".join(self._rejected))
            self._rejected.clear()
        self._out.append(ToolCall(self._place, name, "", uuid4().hex[:SHORT_ID] if self.short_ids and not id else id))
        self._place += 1
        self._held.clear()
        self.undecided, self.unfinished = False, True

    def add_arguments(self, part: str, behind: str = "") -> None:
        """Send more of the arguments. `behind`: text that was read after the sent text. It is held."""
        if part:
            self._arguments.append(part)
            self._held = [behind] if behind else []

    def complete_call(self) -> None:
        """Mark the arguments as complete, whatever text follows."""
        self.unfinished = False

    def skip_ends(self, end: str) -> Parsing[None]:
        """Read further copies of the marker after a call. Some models write a marker twice."""
        yield from self.read_whitespace()
        while end and (yield from self.accept(end)):
            self.end_call()
            yield from self.read_whitespace()

    def end_call(self) -> None:
        """End the call. Text that was read after its arguments was a wrapper and is dropped."""
        self._emit_arguments()
        self._held.clear()
        self.unfinished = False

    def add_call(self, name: str, arguments: Iterable[tuple[str, str]], id: str | None = None) -> None:
        """Send a whole call. `arguments`: the name of each argument, and its value as JSON."""
        self.start_call(name, id)
        self.add_arguments(write_object(arguments))
        self.end_call()

    def _emit_arguments(self) -> None:
        if self._arguments:
            self._out.append(ToolCall(self._place - 1, arguments="".join(self._arguments)))
            self._arguments.clear()


def partial_marker(text: str, marker: str) -> int:
    """Return the number of characters at the end of the text that begin the marker."""
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0)


def in_json(value: Any) -> str:
    """Return the value as JSON."""
    return msgspec.json.encode(value).decode()


def write_object(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a JSON object of these keys and of values that are JSON already.

    If a key was written twice, the last value counts, as in the peers' parsers. Readers of JSON may reject such keys.
    """
    return f"{{{', '.join(f'{in_json(key)}: {value}' for key, value in dict(pairs).items())}}}"


def drop_text(text: str) -> None:
    """Drop wrapper text. This function is a sink."""
