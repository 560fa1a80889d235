"""The common part of splitters, which split a model's text into channels: reasoning, content and tool calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tailrace.text.tool_parsers import ToolCall

Channel = Literal["content", "reasoning", "tool"]


class Segment(NamedTuple):
    """New text of one channel, or the new part of a tool call."""

    channel: Channel
    text: str = ""
    call: ToolCall | None = None


class Splitter(ABC):
    """The base class of splitters, with feed and flush.

    Attributes:
        thinking: the text is inside a thought.
        calls: number of calls whose names were sent.
        cut_call: only a part of a call was sent. Its arguments are incomplete.
        thoughts: the thoughts' places in the whole text, as (begin, end) in characters. Its reader removes entries that
            it no longer needs.
    """

    def __init__(self) -> None:
        self.thinking = False
        self.calls = 0
        self.cut_call = False
        self.thoughts: deque[tuple[int, int]] = deque()
        self._held = ""
        self._fed = 0  # characters
        self._segments: list[Segment] = []

    @property
    def called(self) -> bool:
        """Whether the text had calls, all of them complete."""
        return self.calls > 0 and not self.cut_call

    @property
    @abstractmethod
    def undecided(self) -> int:
        """The number of characters at the end that are held back, because later text decides about them."""

    @property
    def decided(self) -> int:
        """The number of characters of the whole text for which `thoughts` is complete."""
        return self._fed - self.undecided

    def prepend_content(self, text: str) -> None:
        """Send content that comes before the answer."""
        self._segments.append(Segment("content", text))

    def feed(self, text: str) -> list[Segment]:
        """Add text; return the segments that can be sent."""
        self._fed += len(text)
        rest, self._held = self._held + text, ""
        while rest:
            rest = self._read_part(rest)
        return self._take_segments()

    def flush(self, cut: bool = False) -> list[Segment]:
        """End the text; return the rest.

        cut: a limit ended the text. If the model itself ended the text and never closed the thought that the prompt had
        opened, the model has skipped the thought. Then the whole text comes once more, as the answer.
        """
        self._flush_held(cut)
        self._held = ""
        if not cut and (skipped := self._get_open_thought()).strip():
            self._send_answer(skipped)
        return self._take_segments()

    def _get_open_thought(self) -> str:
        """Return the text of a thought that the prompt opened and that is still open, if it is the whole answer."""
        return ""

    def _send_answer(self, text: str) -> None:
        """Send the text of a skipped thought as the answer."""
        self._segments.append(Segment("content", text))

    @abstractmethod
    def _read_part(self, text: str) -> str:
        """Read some of the text, which ends where the text that was fed ends. Return the rest. Hold text that needs
        more text."""

    @abstractmethod
    def _flush_held(self, cut: bool) -> None:
        """Send the held text, or drop it. cut: see `flush`."""

    def _send_thought(self, text: str, behind: int) -> None:
        """Send text of a thought. behind: number of fed characters that come after it."""
        if text:
            end = self._fed - behind
            begin = end - len(text)
            if self.thoughts and self.thoughts[-1][1] == begin:
                begin, _ = self.thoughts.pop()
            self.thoughts.append((begin, end))
            self._segments.append(Segment("reasoning", text))

    def _take_segments(self) -> list[Segment]:
        found, self._segments = self._segments, []
        return found


class ReasoningTokens:
    """Counts the tokens whose text begins within a thought. Markers do not count.

    Args:
        splitter: the splitter that gets the text of the tokens.
    """

    def __init__(self, splitter: Splitter) -> None:
        self._splitter = splitter
        self._begins: deque[int] = deque()  # places of tokens that are not decided
        self._count = 0

    def add(self, begins: Sequence[int]) -> None:
        """Add tokens by their places in the whole text."""
        self._begins.extend(begins)

    @property
    def count(self) -> int:
        """Return the number of tokens in thoughts, among the tokens whose channel is known."""
        begins, thoughts, decided = self._begins, self._splitter.thoughts, self._splitter.decided
        while begins and begins[0] < decided:
            at = begins.popleft()
            while thoughts and thoughts[0][1] <= at:
                thoughts.popleft()
            self._count += bool(thoughts) and thoughts[0][0] <= at
        return self._count
