"""Splits a harmony answer (gpt-oss) into channels. The answer is a row of messages, each a header and a body:

    <|start|>assistant<|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

The channel analysis is a thought. The channels commentary (a preamble) and final are content. A message to a recipient
is a call, on every channel. The recipient may come before or after the channel. The format is OpenAI's
(cookbook.openai.com/articles/openai-harmony). tests/text/test_harmony.py compares with the vendor's own parser.

The format's marks never come out. A model may leave out the start of a message, its end, or its header. Knows nothing
of tokens.
"""

from __future__ import annotations

import re
from functools import partial

from tailrace.text.reasoning import HARMONY_MARKS
from tailrace.text.splitter import Segment, Splitter
from tailrace.text.tool_parsers import ToolCall
from tailrace.text.tool_parsers.call_object import call_arguments, skip_braces
from tailrace.text.tool_parsers.call_parser import CallParser, Parsing, partial_marker

START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN = HARMONY_MARKS
CHANNELS = ("analysis", "commentary", "final")
PEOPLE = ("assistant", "user", "all")  # recipients that are no tools
# beginnings of the words before <|channel|>: the speaker and the recipient
BEFORE = ("assistant", "system", "developer", "user", "tool", "to=", "functions.")
WORD = re.compile(r"[A-Za-z0-9_.:-]*")  # a channel or a content type
MARKS_WITHIN = re.compile(rf"\s+|{re.escape(CONSTRAIN)}|{re.escape(CHANNEL)}")
RECIPIENT = re.compile(r"\bto=(\S+)")
LONGEST_HEADER = 512  # characters; a longer one is text


class HarmonySplitter(Splitter):
    """Splits the text of one choice, piece by piece.

    Args:
        prompt: the prompt's end. The answer continues its last message.
        separate: False leaves thoughts in the content, between their marks.
        calls: messages to recipients are calls. Otherwise they are content, or thoughts on the channel analysis.
    """

    def __init__(self, prompt: str = "", separate: bool = True, calls: bool = True) -> None:
        super().__init__()
        self._separate, self._with_calls = separate, calls
        self._header: str | None = ""  # The header so far, with its marks. None within a body.
        self._given = 0  # Characters of the header that are in the prompt.
        self._call: CallParser | None = None  # Reads the arguments of the open call.
        self._name = ""  # The name of the open call.
        self._thought = False  # The message is a thought, unless it is a call.
        _, found, begun = prompt.rpartition(START)
        if found:
            self.feed(begun)
            self.thoughts.clear()
            self._fed, self._held, self._call, self.calls = 0, "", None, 0
            self._given = len(self._header or "")

    @property
    def undecided(self) -> int:
        """The length of an incomplete header, or of a call's text before its arguments, which may turn out to be no
        call."""
        call = 0 if self._call is None or not self._call.undecided else len(self._call.held + self._call.unread)
        return len(self._held) + call + (0 if self._header is None else len(self._header) - self._given)

    def _read_part(self, text: str) -> str:
        at, mark = min(((text.find(mark), mark) for mark in HARMONY_MARKS if mark in text), default=(-1, ""))
        if at < 0:
            keep = max(partial_marker(text, mark) for mark in HARMONY_MARKS) if "<" in text else 0
            self._held = text[len(text) - keep :]
            self._add_text(text[: len(text) - keep], keep)
            return ""
        self._add_text(text[:at], len(text) - at)
        self._read_mark(mark, len(text) - at)
        return text[at + len(mark) :]

    def _flush_held(self, cut: bool) -> None:
        self._add_text(self._held, 0)
        if self._header is not None:
            self._drop_header(0)
        if self._call is not None:
            begun = not self._call.undecided or bool((self._call.held + self._call.unread).strip())
            self._end_call(self._call, begun and not cut, cut)
        self._end_body(whole=False)

    def _read_mark(self, mark: str, behind: int) -> None:
        """Read a mark. It begins or ends something; a mark without a meaning at its place is left out."""
        if mark == MESSAGE:
            if self._header is not None:
                self._begin_body()
        elif mark == CONSTRAIN or (mark == CHANNEL and self._header is not None):
            if self._header is not None:
                self._header += mark
        else:
            if self._header is not None:
                self._drop_header(behind)
            self._end_body(whole=mark in (END, CALL, RETURN))
            self._header = mark if mark in (START, CHANNEL) else ""

    def _add_text(self, text: str, behind: int) -> None:
        """Add text without marks to a header or a body."""
        if self._header is None:
            self._send_text(text, behind)
            return
        self._header += text
        if not may_be_header(self._header):
            self._turn_to_text(behind)

    def _turn_to_text(self, behind: int) -> None:
        """Treat the header as text of the channel that it names, because it turned out to be no header."""
        assert self._header is not None
        before, found, after = self._header.rpartition(CHANNEL)
        name = next((name for name in CHANNELS if found and after.startswith(name)), "")
        text = after.removeprefix(name) if found else before + after[self._given :]
        self._header = found + name
        self._begin_body()
        for mark in HARMONY_MARKS:
            text = text.replace(mark, "")
        self._send_text(text, behind)

    def _drop_header(self, behind: int) -> None:
        """Drop a header without a body. A header without marks may be text."""
        assert self._header is not None
        own = self._header[self._given :]
        marked = any(mark in self._header for mark in (START, CHANNEL))
        if not marked and any(not word.startswith("to=") for word in own.split()):
            self._turn_to_text(behind)
        self._header, self._given = None, 0

    def _begin_body(self) -> None:
        """Begin a thought, content or a call: the header is complete."""
        assert self._header is not None
        header, self._header, self._given = self._header, None, 0
        channel = header.rpartition(CHANNEL)[2] if CHANNEL in header else ""
        recipient = RECIPIENT.search(header.replace("<", " <"))
        self._thought = channel.strip().startswith(CHANNELS[0])
        if recipient is not None and recipient[1] not in PEOPLE and self._with_calls:
            self._name = recipient[1].removeprefix("functions.")
            self._call = CallParser(partial(read_arguments, self._name), "", None, {}, self.calls, False)
        else:
            self._begin_text()

    def _begin_text(self) -> None:
        """Begin a thought or content. If thoughts stay in the content, write the thought's mark."""
        self.thinking = self._thought
        if self.thinking and not self._separate:
            self._segments.append(Segment("content", f"{CHANNEL}{CHANNELS[0]}{MESSAGE}"))

    def _end_body(self, whole: bool) -> None:
        """End the message. whole: an end mark ended it. Otherwise a call is whole if its arguments are."""
        if self._call is not None:
            self._end_call(self._call, whole)
        if self.thinking and not self._separate and whole:
            self._segments.append(Segment("content", END))
        self.thinking = False

    def _send_text(self, text: str, behind: int) -> None:
        if not text:
            return
        if self._call is not None:
            self._read_call(self._call, text, behind)
        elif self.thinking and self._separate:
            self._send_thought(text, behind)
        else:
            self._segments.append(Segment("content", text))

    def _read_call(self, call: CallParser, text: str, behind: int, ended: bool = False) -> None:
        """Read arguments. If the message begins with other text, it is text of its channel."""
        for part in call.feed(text, ended):
            if isinstance(part, ToolCall):
                self._segments.append(Segment("tool", call=part))
                self.calls += bool(part.name)
        if call.over:
            self._call, rest = None, call.held + call.unread
            self.cut_call |= call.cut_call
            if not call.num_calls:
                self._begin_text()
            if not call.cut or not call.num_calls:
                self._send_text(rest, behind)

    def _end_call(self, call: CallParser, whole: bool, cut: bool = False) -> None:
        """End the message of a call. whole: a mark or the model's end closed everything. cut: a limit ended it."""
        call.closes, call.cut = whole, cut
        if whole or not call.undecided or (call.held + call.unread).strip():
            self._read_call(call, "", 0, ended=True)
        else:
            self._segments.append(Segment("tool", call=ToolCall(self.calls, self._name)))
            if not cut:
                self._segments.append(Segment("tool", call=ToolCall(self.calls, arguments="{}")))
            self.calls += 1
        self.cut_call |= call.cut_call or (call.undecided and not whole)
        self._call = None


def read_arguments(name: str, parser: CallParser) -> Parsing[None]:
    """Read the body of a message to a function."""
    yield from parser.read_whitespace()
    yield from call_arguments(parser, name)
    parser.end_call()
    yield from skip_braces(parser)


def may_be_header(text: str) -> bool:
    """Return whether a message may begin with this text. If not, no longer text may either."""
    before, found, after = text.removeprefix(START).partition(CHANNEL)
    if len(text) > LONGEST_HEADER or "\n" in after.strip():
        return False
    if not all(word.startswith("to=") or WORD.fullmatch(word) for word in re.split(MARKS_WITHIN, after)):
        return False
    *words, last = before.split() or [""]
    known = all(word in BEFORE or word.startswith(("to=", "functions.")) for word in words)
    finished = bool(found) or before != before.rstrip()
    begins = not finished and any(start.startswith(last) for start in BEFORE)
    return known and (not last or begins or last in BEFORE or last.startswith(("to=", "functions.")))
