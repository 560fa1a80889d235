"""A model's text → what it thinks, what it says, which tools it calls: split at the markers that models write around each.

Exact: every character of the text comes out in one channel or is part of a marker; held back is only what may still become one, and
a tool call until it is whole. What looks like a tool call and is none comes out as it was, as content. Knows nothing of tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Channel = Literal["content", "reasoning", "tool"]
Markers = tuple[str, str]  # what opens a channel, and what closes it

REASONING: dict[str, Markers] = {  # as models of these families write it
    "think": ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3, GLM
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
}
TOOLS: dict[str, Markers] = {
    "hermes": ("<tool_call>", "</tool_call>"),  # Hermes, Qwen, SmolLM3: one JSON object in each
}


class ToolCall(NamedTuple):
    """The place-th call: the function's name and its arguments as the model wrote them, in JSON."""

    place: int
    name: str
    arguments: str


class Segment(NamedTuple):
    """New text of a channel, or a whole tool call."""

    channel: Channel
    text: str = ""
    call: ToolCall | None = None


class Written(msgspec.Struct):
    """A tool call inside its markers; some models say "parameters"."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


class Splitter:
    """One choice's text, piece by piece.

    Args:
        reasoning, tools: the markers to look for; None: such text is content like any other.
        opened: the prompt ends inside the reasoning already.
    """

    def __init__(self, reasoning: Markers | None, tools: Markers | None, opened: bool = False) -> None:
        self._markers: dict[Channel, Markers] = {}
        if reasoning is not None:
            self._markers["reasoning"] = reasoning
        if tools is not None:
            self._markers["tool"] = tools
        self._channel: Channel = "reasoning" if opened and reasoning is not None else "content"
        self._held = ""
        self._call = ""  # of a tool call, what has been written so far
        self.calls = 0

    def feed(self, text: str) -> list[Segment]:
        """More text → what can go out of it."""
        if not self._markers:
            return [Segment("content", text)] if text else []
        found: list[Segment] = []
        rest = self._held + text
        while True:
            active = self._active()
            at, marker = min(((rest.find(marker), marker) for marker in active if marker in rest), default=(-1, ""))
            if at < 0:
                keep = max((overlap(rest, marker) for marker in active), default=0)
                self._held = rest[len(rest) - keep :]
                self._add(found, rest[: len(rest) - keep])
                return found
            self._add(found, rest[:at])
            self._turn(found, marker)
            rest = rest[at + len(marker) :]

    def flush(self) -> list[Segment]:
        """The end: what was held is text; a tool call that was cut off is content, as it was written."""
        found: list[Segment] = []
        held, self._held = self._held, ""
        if self._channel == "tool":
            found.append(Segment("content", self._markers["tool"][0] + self._call + held))
        else:
            self._add(found, held)
        return found

    def _active(self) -> tuple[str, ...]:
        """The markers that mean something now."""
        if self._channel == "content":
            return tuple(opening for opening, _ in self._markers.values())
        return (self._markers[self._channel][1],)

    def _add(self, found: list[Segment], text: str) -> None:
        if self._channel == "tool":
            self._call += text
        elif text:
            found.append(Segment(self._channel, text))

    def _turn(self, found: list[Segment], marker: str) -> None:
        if self._channel == "content":
            self._channel = next(channel for channel, (opening, _) in self._markers.items() if opening == marker)
            return
        if self._channel == "tool":
            call = parsed(self._call, self.calls)
            if call is None:
                found.append(Segment("content", self._markers["tool"][0] + self._call + marker))
            else:
                found.append(Segment("tool", call=call))
                self.calls += 1
            self._call = ""
        self._channel = "content"


def overlap(text: str, marker: str) -> int:
    """Characters at the end of the text that begin the marker."""
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0)


def parsed(written: str, index: int) -> ToolCall | None:
    """The call, or None if it is none."""
    try:
        call = msgspec.json.decode(written, type=Written)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    arguments = (bytes(call.arguments) or bytes(call.parameters) or b"{}").decode()
    return ToolCall(index, call.name, arguments)


def inside(prompt_end: str, markers: Markers) -> bool:
    """The text ends between the markers: a template has opened them for the model."""
    return prompt_end.rfind(markers[0]) > prompt_end.rfind(markers[1])
