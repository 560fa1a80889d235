"""A model's text → what it thinks, what it says, which tools it calls: split at the markers that models write around each.

Exact: every character of the text comes out in one channel, or is part of a marker or of a call's wrapper, or white space behind a
call with nothing said after it. Held back is only what may still become a marker, and of a call what comes before its name is known
(text/tools). What looks like a tool call and is none comes out as it was, as content. Knows nothing of tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tailrace.text.tool_parsers import Block, Format, ToolCall, Tools
from tailrace.text.tool_parsers.block import overlap

Channel = Literal["content", "reasoning", "tool"]
Markers = tuple[str, str]  # what opens a channel, and what closes it

REASONING: dict[str, Markers] = {  # as models of these families write it
    "think": ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3, GLM
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
}


class Segment(NamedTuple):
    """New text of a channel, or what is new of a tool call."""

    channel: Channel
    text: str = ""
    call: ToolCall | None = None


class ChannelSplitter:
    """One choice's text, piece by piece.

    If a call goes wrong when its name is out, what has gone out stands and all behind that is content again; but the closing marker,
    where it comes, still belongs to the call.

    Args:
        reasoning, tools: what to look for; None: such text is content like any other.
        opened: the prompt ends inside the reasoning already.
        declared: the request's tools.
    """

    def __init__(
        self, reasoning: Markers | None, tools: Format | None, opened: bool = False, declared: Tools | None = None
    ) -> None:
        self._reasoning, self._tools, self._declared = reasoning, tools, declared or {}
        self._closing = dict(tools.markers) if tools is not None else {}
        self._thinking = opened and reasoning is not None
        self._block: Block | None = None
        self._bare = tools.bare if tools is not None else ""  # until something has been said
        self._stray: str | None = None  # the closing marker of a block that went wrong
        self._gap: str | None = None  # the white space since the last call, while there is nothing else
        self._held = ""
        self._found: list[Segment] = []
        self.calls = 0
        self.cut_call = False  # the last call has gone out in part: its arguments are not whole

    @property
    def called(self) -> bool:
        """There were calls, and they are whole."""
        return self.calls > 0 and not self.cut_call

    def feed(self, text: str) -> list[Segment]:
        """More text → what can go out of it."""
        if self._reasoning is None and self._tools is None:
            return [Segment("content", text)] if text else []
        rest, self._held = self._held + text, ""
        while rest:
            rest = self._scan(rest) if self._block is None else self._read(self._block, rest)
        found, self._found = self._found, []
        return found

    def flush(self) -> list[Segment]:
        """The end: what was held is text; a tool call that was cut off before its name was known is content, as it was written."""
        if self._block is not None:
            self.cut_call = self._block.unfinished
        self._add(self._held if self._block is None else self._block.left)
        self._held, self._block = "", None
        found, self._found = self._found, []
        return found

    def _scan(self, text: str) -> str:
        """Text up to the first marker; what comes behind that."""
        if self._bare and not self._thinking:
            start = text.lstrip()
            if not start:
                self._held = text
                return ""
            if start.startswith(self._bare):
                self._open(text[: len(text) - len(start)], None, bare=True)
                return start
        active = self._active()
        at, marker = min(((text.find(marker), marker) for marker in active if marker in text), default=(-1, ""))
        if at < 0:
            keep = max((overlap(text, marker) for marker in active), default=0)
            self._held = text[len(text) - keep :]
            self._add(text[: len(text) - keep])
            return ""
        self._add(text[:at])
        self._turn(marker)
        return text[at + len(marker) :]

    def _active(self) -> list[str]:
        """The markers that mean something now."""
        if self._reasoning is not None and self._thinking:
            return [self._reasoning[1]]
        return [
            *self._closing,
            *([] if self._reasoning is None else [self._reasoning[0]]),
            *([] if self._stray is None else [self._stray]),
        ]

    def _turn(self, marker: str) -> None:
        """What a marker does."""
        if marker in self._closing and not self._thinking:
            self._open(marker, self._closing[marker])
        elif marker == self._stray:
            self._stray = None
            self._gap = ""
        else:
            self._thinking = not self._thinking
            if self._gap:
                self._found.append(Segment("content", self._gap))
            self._gap = None

    def _open(self, opening: str, closing: str | None, bare: bool = False) -> None:
        assert self._tools is not None
        opening = (self._gap or "") + opening
        self._gap = self._stray = None
        self._bare = ""
        self._block = Block(self._tools.read, opening, closing, self._declared, self.calls, bare)

    def _read(self, block: Block, text: str) -> str:
        """Text inside a block of calls; what comes behind it."""
        for call in block.feed(text):
            self._found.append(Segment("tool", call=call))
            self.calls += bool(call.name)
        if not block.over:
            return ""
        self._block, self.cut_call = None, block.unfinished
        if block.num_calls:
            self._gap, self._stray = "", block.stray
        self._add(block.held)
        return block.unread

    def _add(self, text: str) -> None:
        """Text of the open channel; white space behind a call waits for what follows it."""
        if self._thinking:
            if text:
                self._found.append(Segment("reasoning", text))
            return
        said = bool(text.strip())
        if self._gap is not None and not said:
            self._gap += text
            return
        if said:
            self._bare = ""
            text, self._gap = (self._gap or "") + text, None
        if text:
            self._found.append(Segment("content", text))


def inside(prompt_end: str, markers: Markers) -> bool:
    """The text ends between the markers: a template has opened them for the model."""
    return prompt_end.rfind(markers[0]) > prompt_end.rfind(markers[1])
