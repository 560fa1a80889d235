"""Splits a model's text into channels: reasoning, content and tool calls, at the markers that models write around each.

The split is exact. Every character comes out in one channel, or belongs to a marker or to a call's wrapper, or is white
space after a call with nothing after it. Only what may still become a marker is held back, and the start of a call
until its name is known. Text that looks like a tool call and is none comes out unchanged, as content. Knows nothing of
tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tailrace.text.reasoning import Markers
from tailrace.text.tool_parsers import CallParser, ToolCall, ToolFormat, ToolSchemas
from tailrace.text.tool_parsers.call_parser import partial_marker

Channel = Literal["content", "reasoning", "tool"]


class Segment(NamedTuple):
    """New text of one channel, or the new part of a tool call."""

    channel: Channel
    text: str = ""
    call: ToolCall | None = None


class ChannelSplitter:
    """Splits the text of one choice, piece by piece.

    A call may turn out malformed after its name was sent. What was sent stands, and the text after it is content again.
    The closing marker still belongs to the call.

    Args:
        reasoning, tools: what to look for; None: such text is content.
        opened: the prompt already ends inside the reasoning.
        declared: the parameters of the request's tools.
    """

    def __init__(
        self,
        reasoning: Markers | None,
        tools: ToolFormat | None,
        opened: bool = False,
        declared: ToolSchemas | None = None,
    ) -> None:
        self._reasoning, self._tools, self._declared = reasoning, tools, declared or {}
        self._closing = dict(tools.markers) if tools is not None else {}
        self._thinking = opened and reasoning is not None
        self._block: CallParser | None = None
        # a block may start without a marker, until there is content
        self._bare = tools.bare if tools is not None else ""
        self._missing_closing: str | None = None  # the closing marker of a malformed block
        self._gap: str | None = None  # white space since the last call; None once other text has come
        self._held = ""
        self._segments: list[Segment] = []
        self.calls = 0
        self.cut_call = False  # a call was sent in part: its arguments are incomplete

    @property
    def called(self) -> bool:
        """True if there were calls and all are complete."""
        return self.calls > 0 and not self.cut_call

    @property
    def held_chars(self) -> int:
        """How many characters at the end of the text may still become a marker."""
        return len(self._held)

    def feed(self, text: str) -> list[Segment]:
        """Add text; return the segments that can be sent."""
        if self._reasoning is None and self._tools is None:
            return [Segment("content", text)] if text else []
        rest, self._held = self._held + text, ""
        while rest:
            rest = self._scan(rest) if self._block is None else self._read(self._block, rest)
        found, self._segments = self._segments, []
        return found

    def flush(self) -> list[Segment]:
        """End the text; return the rest. A tool call that was cut before its name was known is unchanged content."""
        if self._block is not None:
            self.cut_call |= self._block.unfinished
        self._add(self._held if self._block is None else self._block.remainder)
        self._held, self._block = "", None
        found, self._segments = self._segments, []
        return found

    def _scan(self, text: str) -> str:
        """Read up to the first marker; return the text after it."""
        if self._bare and not self._thinking:
            start = text.lstrip()
            if not start:
                self._held = text
                return ""
            if start.startswith(self._bare):
                self._open(text[: len(text) - len(start)], None, bare=True)
                return start
        active = self._active_markers()
        at, marker = min(((text.find(marker), marker) for marker in active if marker in text), default=(-1, ""))
        if at < 0:
            keep = max((partial_marker(text, marker) for marker in active), default=0)
            self._held = text[len(text) - keep :]
            self._add(text[: len(text) - keep])
            return ""
        self._add(text[:at])
        self._switch(marker)
        return text[at + len(marker) :]

    def _active_markers(self) -> list[str]:
        """The markers that have a meaning in the current channel."""
        if self._reasoning is not None and self._thinking:
            return [self._reasoning[1]]
        return [
            *self._closing,
            *([] if self._reasoning is None else [self._reasoning[0]]),
            *([] if self._missing_closing is None else [self._missing_closing]),
        ]

    def _switch(self, marker: str) -> None:
        """Switch the channel as the marker says."""
        if marker in self._closing and not self._thinking:
            self._open(marker, self._closing[marker])
        elif marker == self._missing_closing:
            self._missing_closing = None
            self._gap = ""
        else:
            self._thinking = not self._thinking
            if self._gap:
                self._segments.append(Segment("content", self._gap))
            self._gap = None

    def _open(self, opening: str, closing: str | None, bare: bool = False) -> None:
        assert self._tools is not None
        opening = (self._gap or "") + opening
        self._gap = self._missing_closing = None
        self._bare = ""
        self._block = CallParser(self._tools.parse, opening, closing, self._declared, self.calls, bare)

    def _read(self, block: CallParser, text: str) -> str:
        """Read text inside a block of calls; return the text after the block."""
        for call in block.feed(text):
            if isinstance(call, str):  # content between calls
                self._add(call)
                continue
            self._segments.append(Segment("tool", call=call))
            self.calls += bool(call.name)
        if not block.over:
            return ""
        self._block, self.cut_call = None, self.cut_call or block.unfinished
        if block.num_calls:
            self._gap, self._missing_closing = "", block.missing_closing
        self._add(block.held)
        return block.unread

    def _add(self, text: str) -> None:
        """Add text to the open channel. White space after a call is held until other text follows."""
        if self._thinking:
            if text:
                self._segments.append(Segment("reasoning", text))
            return
        visible = bool(text.strip())
        if self._gap is not None and not visible:
            self._gap += text
            return
        if visible:
            self._bare = ""
            text, self._gap = (self._gap or "") + text, None
        if text:
            self._segments.append(Segment("content", text))
