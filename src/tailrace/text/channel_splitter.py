"""Splits a model's text into channels: reasoning, content and tool calls, at the markers that models write around each.

The split is exact. Every character comes out in one channel, or belongs to a marker or to a call's wrapper, or is white
space beside calls. Only white space that may stand beside a call, text that may still become a marker, and the start of
a call until its name is known are held back. Text that looks like a tool call but is none comes out unchanged. Knows
nothing of tokens.
"""

from __future__ import annotations

from tailrace.text.reasoning import ReasoningFormat, Start
from tailrace.text.splitter import Segment, Splitter
from tailrace.text.tool_parsers import CallParser, ToolFormat, ToolSchemas
from tailrace.text.tool_parsers.call_parser import partial_marker


class ChannelSplitter(Splitter):
    """Splits the text of one choice, piece by piece.

    A call may turn out malformed after its name was sent. The sent part stays, and the text after it is content again.
    The closing marker still belongs to the call.

    An answer has one thought, unless its format allows more. An opening marker after that thought is content. A closing
    marker that closes nothing is left out if no thought has ended yet, or if no text has followed one. If the model
    ends an answer within the thought that the prompt opened, the thought is the answer, too: see `flush`. A call
    without markers at the start of such a thought is held back. If nothing follows, it is the call and no thought.

    Args:
        reasoning, tools: the formats to look for; None: such text is content.
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
        self._ended = start == "closed"  # A thought has ended.
        self._visible = False  # Text other than white space came since a thought began or ended.
        self._label = ""  # The label that may come next.
        self._block: CallParser | None = None
        self._opening = ""  # The block's opening marker.
        # A block may start without a marker. After other text, the request must declare its function.
        self._bare = tools.bare if tools is not None else ""
        self._begun = False  # Content has come.
        self._missing_closing: str | None = None  # The closing marker of a malformed block.
        self._for_closing = False  # Its opening marker may replace the closing marker.
        self._doubled = False  # Its closing marker came, and may come twice.
        # White space since the start of the answer, the last thought or the last call, if calls are looked for. None
        # after other text.
        self._gap: str | None = None if tools is None else ""
        self._first_thought: list[str] | None = [] if start == "opened" else None  # Until it ends.
        self._set_thinking(reasoning is not None and start == "opened")
        # Reads that thought as long as it may be a call without markers. The text is held back until then.
        self._trial: CallParser | None = None
        self._waiting: list[str] = []
        if self.thinking and tools is not None and self._bare:
            self._trial = CallParser(tools.parse, "", None, self._declared, 0, bare=True)

    def begin(self, marker: str) -> None:
        """Begin the answer within a block whose opening marker is in the prompt."""
        self._open_call_block("", self._closing[marker])

    @property
    def undecided(self) -> int:
        """The number of characters at the end that may still belong to another channel."""
        if self._block is None:
            return len(self._held) + sum(map(len, self._waiting))
        return len(self._block.held) + len(self._block.unread) if self.thinking else 0

    @property
    def calling(self) -> bool:
        """Whether a call has begun, or text that may become one."""
        return self._block is not None

    def _read_part(self, text: str) -> str:
        if self._block is not None:
            return self._read_block(self._block, text)
        if self._label:
            return self._skip_label(text)
        if self._bare and not self._begun and not self.thinking:
            start = text.lstrip()
            if not start:
                self._held = text
                return ""
            if start.startswith(self._bare):
                self._open_call_block(text[: len(text) - len(start)], None, bare=True)
                return start
        return self._read_marker(text)

    def _flush_held(self, cut: bool) -> None:
        while (block := self._block) is not None and not block.passing:
            undecided = block.undecided
            block.cut, block.closes = cut, not cut
            self._feed_block(block, "", ended=True)
            if self._for_closing and not cut and (block.held + block.unread).strip() == self._opening.strip():
                self._block = None
                return
            whole = not block.gave_back and (cut or not block.unfinished)
            if whole and not undecided:  # the cut wrapper of a call is dropped
                self.cut_call |= block.cut_call
                self._block = None
                return
            rest, self._held = self._leave_block(block), ""
            while rest:  # text after the block, or the whole block if it has no call
                rest = self._read_part(rest)
        if block is None:
            torn = self._gap is not None and bool(self._missing_closing)
            if not torn or not str(self._missing_closing).startswith(self._held):  # else a torn tag behind a call
                self._add_text(self._held, 0)
            if self._gap and not self.calls:  # the answer is white space
                self._segments.append(Segment("content", self._gap))
            if cut or not self._get_open_thought().strip():
                self._stop_waiting(0)
            return
        self._add_text(block.held + block.unread, 0)
        self._block = None

    def _get_open_thought(self) -> str:
        return "" if self.calls else "".join(self._first_thought or ())

    def _send_answer(self, text: str) -> None:
        answer = ChannelSplitter(None, self._tools, declared=self._declared)
        segments = answer.feed(text) + answer.flush()
        if not answer.calls:
            self._stop_waiting(0)
        self._segments += segments
        self.calls, self.cut_call = answer.calls, self.cut_call or answer.cut_call

    def _stop_waiting(self, behind: int) -> None:
        """Send the text that was held back as what may be a call. It is a thought."""
        text = "".join(self._waiting)
        self._trial = None
        self._waiting.clear()
        self._send_thought(text, behind)

    def _may_be_call(self, trial: CallParser, text: str, first: bool) -> bool:
        """True if the thought may be a call as a whole, up to this text. first: the first text that is no white
        space."""
        if first and not text.lstrip().startswith(self._bare):
            return False
        if not trial.over:
            trial.feed(text)
            text = trial.unread
        return not trial.over or (trial.num_calls > 0 and not text.strip())

    def _read_marker(self, text: str) -> str:
        """Read up to the first marker; return the text after it."""
        if self._first.isdisjoint(text):
            self._add_text(text, 0)
            return ""
        at, marker = min(((text.find(marker), marker) for marker in self._active if marker in text), default=(-1, ""))
        if at < 0:
            keep = max(partial_marker(text, marker) for marker in self._active)
            self._held = text[len(text) - keep :]
            self._add_text(text[: len(text) - keep], keep)
            return ""
        self._add_text(text[:at], len(text) - at)
        self._stop_waiting(len(text) - at)
        if marker not in self._active:  # it counts only before other text
            return text[at:]
        if marker == self._bare:
            self._open_call_block("", None, bare=True)
            return text[at:]
        self._switch_channel(marker)
        return text[at + len(marker) :]

    def _set_thinking(self, thinking: bool) -> None:
        """Enter or leave a thought."""
        if self.thinking and not thinking:
            self._ended, self._gap = True, None if self._tools is None else ""
        self._first_thought = self._first_thought if thinking else None
        self.thinking, self._visible = thinking, False
        self._update_markers()

    def _update_markers(self) -> None:
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
        if self._bare and self._declared and not self.thinking:
            active.append(self._bare)
        self._active = tuple(dict.fromkeys(active))
        self._first = frozenset(marker[0] for marker in self._active)

    def _switch_channel(self, marker: str) -> None:
        """Switch the channel at a marker."""
        form = self._reasoning
        if marker in self._closing:
            self._open_call_block(marker, self._closing[marker])
        elif marker == self._missing_closing:
            self._missing_closing = self._missing_closing if self._doubled else None
            self._gap = None if self.thinking else ""
            self._update_markers()
        elif form is not None and marker in form.openings and not self.thinking:
            if self._gap:
                self._segments.append(Segment("content", self._gap))
            self._gap, self._label = None, form.label
            self._set_thinking(True)
        elif form is not None and marker in form.closings:
            self._ended = True
            self._set_thinking(False)

    def _skip_label(self, text: str) -> str:
        """Remove the label after an opening marker, if the text has it."""
        label, self._label = self._label, ""
        if label.startswith(text) and text != label:
            self._held, self._label = text, label
            return ""
        return text.removeprefix(label)

    def _open_call_block(self, opening: str, closing: str | None, bare: bool = False) -> None:
        assert self._tools is not None
        self._opening = (self._gap or "") + opening
        self._for_closing = self._missing_closing is not None and not self._doubled
        self._gap = self._missing_closing = None
        self._begun = True
        self._block = CallParser(self._tools.parse, self._opening, closing, self._declared, self.calls, bare)

    def _read_block(self, block: CallParser, text: str) -> str:
        """Read text inside a block of calls; return the text after the block."""
        self._feed_block(block, text, ended=False)
        return self._leave_block(block) if block.over else ""

    def _leave_block(self, block: CallParser) -> str:
        """Leave a complete block; return the text after the block."""
        self._block = None
        if self.thinking and not block.num_calls:  # the thought only mentions the marker
            rest = block.held.removeprefix(self._opening) + block.unread
            self._update_markers()
            self._add_text(self._opening, len(rest))
            return rest
        self.cut_call |= block.cut_call
        if block.num_calls:
            self._gap, self._missing_closing = None if self.thinking else "", block.closing
            self._doubled = block.missing_closing is None
        self._update_markers()
        self._add_text(block.held, len(block.unread))
        return block.unread

    def _feed_block(self, block: CallParser, text: str, ended: bool) -> None:
        """Add text to a block, and send the block's output."""
        for call in block.feed(text, ended):
            if self.thinking and self._reasoning is not None and self._reasoning.calls == "end":
                self._set_thinking(False)
            if isinstance(call, str):  # content between calls
                self._add_text(call, len(block.held) + len(block.unread))
                continue
            self._segments.append(Segment("tool", call=call))
            self.calls += bool(call.name)

    def _add_text(self, text: str, behind: int) -> None:
        """Add text to the open channel. Hold white space after a call until other text follows. behind: see
        `_send_thought`."""
        visible = bool(text.strip())
        if visible and self._doubled and self._missing_closing is not None:
            self._missing_closing = None
            self._update_markers()
        first = visible and not self._visible
        if first:
            self._visible = True
            self._update_markers()
        if self.thinking:
            if self._first_thought is not None:
                self._first_thought.append(text)
            if self._trial is None:
                self._send_thought(text, behind)
                return
            self._waiting.append(text)
            if not self._may_be_call(self._trial, text, first):
                self._stop_waiting(behind)
            return
        if self._gap is not None and not visible:
            self._gap += text
            return
        if visible:
            self._begun = True
            text, self._gap = (self._gap or "") + text, None
        if text:
            self._segments.append(Segment("content", text))
