"""Splits a model's text into channels: reasoning, content and tool calls, at the markers that models write around each.

The split is exact. Every character comes out in one channel, or belongs to a marker or to a call's wrapper, or is white
space after a call with nothing after it. Only what may still become a marker is held back, and the start of a call
until its name is known. Text that looks like a tool call and is none comes out unchanged. Knows nothing of tokens.
"""

from __future__ import annotations

from tailrace.text.reasoning import ReasoningFormat, Start
from tailrace.text.splitter import Segment, Splitter
from tailrace.text.tool_parsers import CallParser, ToolFormat, ToolSchemas
from tailrace.text.tool_parsers.call_parser import partial_marker


class ChannelSplitter(Splitter):
    """Splits the text of one choice, piece by piece.

    A call may turn out malformed after its name was sent. What was sent stands, and the text after it is content again.
    The closing marker still belongs to the call.

    An answer has one thought, unless its format says otherwise. An opening marker behind that thought is content. A
    closing marker is left out where it closes nothing: before any thought has ended, and before any text has followed
    one.

    Args:
        reasoning, tools: what to look for; None: such text is content.
        start: where the answer begins, see reasoning.start_of.
        declared: the parameters of the request's tools.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        start: Start = "unknown",
        declared: ToolSchemas | None = None,
    ) -> None:
        super().__init__()
        self._reasoning, self._tools, self._declared = reasoning, tools, declared or {}
        self._closing = dict(tools.markers) if tools is not None else {}
        self._ended = start == "closed"  # a thought has ended
        self._visible = False  # there was text other than white space since a thought began or ended
        self._label = ""  # comes next, if the model writes it
        self._block: CallParser | None = None
        self._opening = ""  # of the block
        # a block may start without a marker, until there is content
        self._bare = tools.bare if tools is not None else ""
        self._missing_closing: str | None = None  # the closing marker of a malformed block
        self._gap: str | None = None  # white space since the last call; None once other text has come
        self._turn(reasoning is not None and start == "opened")

    @property
    def undecided(self) -> int:
        """How many characters at the end may still become another channel's."""
        if self._block is None:
            return len(self._held)
        return len(self._block.held) + len(self._block.unread) if self.thinking else 0

    @property
    def calling(self) -> bool:
        """A call has begun, or what may become one."""
        return self._block is not None

    def _step(self, text: str) -> str:
        if self._block is not None:
            return self._read(self._block, text)
        if self._label:
            return self._skip_label(text)
        if self._bare and not self.thinking:
            start = text.lstrip()
            if not start:
                self._held = text
                return ""
            if start.startswith(self._bare):
                self._open(text[: len(text) - len(start)], None, bare=True)
                return start
        return self._scan(text)

    def _end(self) -> None:
        if self._block is None:
            self._add(self._held, 0)
            return
        self.cut_call |= self._block.unfinished
        self._add(self._block.remainder, 0)
        self._block = None

    def _scan(self, text: str) -> str:
        """Read up to the first marker; return the text after it."""
        if self._first.isdisjoint(text):
            self._add(text, 0)
            return ""
        at, marker = min(((text.find(marker), marker) for marker in self._active if marker in text), default=(-1, ""))
        if at < 0:
            keep = max(partial_marker(text, marker) for marker in self._active)
            self._held = text[len(text) - keep :]
            self._add(text[: len(text) - keep], keep)
            return ""
        visible = self._visible
        self._add(text[:at], len(text) - at)
        if visible != self._visible and marker not in self._active:  # it counts only before other text
            return text[at:]
        self._switch(marker)
        return text[at + len(marker) :]

    def _turn(self, thinking: bool) -> None:
        """Enter or leave a thought."""
        self._ended |= self.thinking and not thinking
        self.thinking, self._visible = thinking, False
        self._arm()

    def _arm(self) -> None:
        """Find the markers that have a meaning here."""
        form, active = self._reasoning, [] if self._missing_closing is None else [self._missing_closing]
        if form is None or not self.thinking or form.calls != "text":
            active += self._closing
        if form is not None and self.thinking:
            active += form.closings
            active += () if self._visible else form.openings
        elif form is not None:
            active += () if self._ended and not form.again else form.openings
            active += () if self._ended and self._visible else form.closings
            active += form.frame
        self._active = tuple(dict.fromkeys(active))
        self._first = frozenset(marker[0] for marker in self._active)

    def _switch(self, marker: str) -> None:
        """Switch the channel as the marker says."""
        form = self._reasoning
        if marker in self._closing:
            self._open(marker, self._closing[marker])
        elif marker == self._missing_closing:
            self._missing_closing = None
            self._gap = None if self.thinking else ""
            self._arm()
        elif form is not None and marker in form.openings and not self.thinking:
            if self._gap:
                self._segments.append(Segment("content", self._gap))
            self._gap, self._label = None, form.label
            self._turn(True)
        elif form is not None and marker in form.closings:
            self._ended = True
            self._turn(False)

    def _skip_label(self, text: str) -> str:
        """Leave out the label behind an opening marker, if it is there."""
        label, self._label = self._label, ""
        if label.startswith(text) and text != label:
            self._held, self._label = text, label
            return ""
        return text.removeprefix(label)

    def _open(self, opening: str, closing: str | None, bare: bool = False) -> None:
        assert self._tools is not None
        self._opening = (self._gap or "") + opening
        self._gap = self._missing_closing = None
        self._bare = ""
        self._block = CallParser(self._tools.parse, self._opening, closing, self._declared, self.calls, bare)

    def _read(self, block: CallParser, text: str) -> str:
        """Read text inside a block of calls; return the text after the block."""
        for call in block.feed(text):
            if self.thinking and self._reasoning is not None and self._reasoning.calls == "end":
                self._turn(False)
            if isinstance(call, str):  # content between calls
                self._add(call, len(block.held) + len(block.unread))
                continue
            self._segments.append(Segment("tool", call=call))
            self.calls += bool(call.name)
        if not block.over:
            return ""
        self._block = None
        if self.thinking and not block.num_calls:  # the thought only names the marker
            rest = block.held.removeprefix(self._opening) + block.unread
            self._arm()
            self._add(self._opening, len(rest))
            return rest
        self.cut_call |= block.unfinished
        if block.num_calls:
            self._gap, self._missing_closing = None if self.thinking else "", block.missing_closing
        self._arm()
        self._add(block.held, len(block.unread))
        return block.unread

    def _add(self, text: str, behind: int) -> None:
        """Add text to the open channel. White space after a call is held until other text follows. behind: see
        `_think`."""
        visible = bool(text.strip())
        if visible and not self._visible:
            self._visible = True
            self._arm()
        if self.thinking:
            self._think(text, behind)
            return
        if self._gap is not None and not visible:
            self._gap += text
            return
        if visible:
            self._bare = ""
            text, self._gap = (self._gap or "") + text, None
        if text:
            self._segments.append(Segment("content", text))
