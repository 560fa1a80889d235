"""Splits a model's text into channels by the checkpoint's response template.

The regions are those of transformers' ResponseParser for the whole text, however the text arrives. Text of content and
of thoughts goes out as it comes, without the white space that the template strips. So do the arguments of calls
(early_calls.py). A region of which nothing was sent and that has no value is content, with its markers: transformers
raises an error there. Knows no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tailrace.text.response_templates.early_calls import EarlyCalls
from tailrace.text.response_templates.search import SLICE, Anchor, Search, find_all_matches
from tailrace.text.response_templates.template import ResponseTemplate, TemplateField
from tailrace.text.splitter import Segment, Splitter
from tailrace.text.tool_parsers import ToolCall, ToolSchemas

QUOTES = re.compile(r'\\.|"|\\', re.DOTALL)
MAX_SCANS, FREE_SCANS = 32, 65536  # times that each character may be searched; searches that are free
NO_GROUPS: Mapping[str, str] = MappingProxyType({})


class TemplateSplitter(Splitter):
    """Splits the text of one choice, piece by piece.

    Args:
        template: the checkpoint's template. prompt: the prompt's end; the answer continues its last message.
        separate: False leaves thoughts in the content, with their markers.
        calls: False leaves calls in the content. declared: the parameters of the request's tools.
    """

    def __init__(
        self,
        template: ResponseTemplate,
        prompt: str = "",
        separate: bool = True,
        calls: bool = True,
        declared: ToolSchemas | None = None,
    ) -> None:
        super().__init__()
        self._template, self._declared = template, declared or {}
        self._raw = {"reasoning"} if not separate else set[str]()  # Channels that stay in the content.
        self._raw |= set() if calls else {"tool"}
        self._buffer, self._behind, self._scanned = "", 0, 0
        self._gap: dict[str, str] = {}  # White space at the end of a channel; no entry before its first text.
        self._enter(template.implicit, "", {})
        self._search("", False)
        self._read_part(read_prefix(template.start, prompt))
        self._segments.clear()
        self.thoughts.clear()
        self._gap.clear()
        self.calls = 0
        if self._early is not None and self._field is not None:  # The prompt has the beginning of a call.
            begun = self._early.body
            self._early = EarlyCalls(self._field, self._mark, self._groups, self._declared, 0)
            self._send_calls(self._early.feed(begun))

    @property
    def undecided(self) -> int:
        """The number of characters at the end that may still be a marker."""
        return len(self._buffer)

    def _read_part(self, text: str) -> str:
        for at in range(0, len(text), SLICE):
            self._behind = max(0, len(text) - at - SLICE)
            self._advance(text[at : at + SLICE], ended=False)
        return ""

    def _flush_held(self, cut: bool) -> None:
        self._behind = 0
        self._advance("", ended=True)
        field, calls = self._field, self.calls
        self._leave("", cut)
        if cut and self.calls > calls and field is not None and field.parser.name != "json":
            self.cut_call = True

    def _advance(self, text: str, ended: bool) -> None:
        """Add text to the buffer, and send what is decided."""
        self._buffer += text
        for _, _, search in self._searches:
            search.feed(text, ended)
        while (chosen := self._choose()) is not None:
            opened, field, search = chosen
            assert search.found is not None
            start, end = search.found.start - self._from, search.found.end - self._from
            mark, groups, rest = self._buffer[start:end], search.read_groups(), self._buffer[end:]
            before, self._buffer = self._buffer[:start], self._buffer[start:]
            self._add_text(before)
            self._buffer = rest
            if self._quoted.inside and self._channel == "tool" and not opened:
                self._add_text(mark)
            else:
                self._leave("" if opened else mark, groups={} if opened else groups)
            if opened:
                self._enter(field, mark, groups)
            self._search(rest, ended)
        size = len(self._buffer) if ended else self._get_hold() - self._from
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        self._from += size
        self._add_text(text)

    def _search(self, text: str, ended: bool) -> None:
        """Begin to search for the markers that have a meaning here."""
        field, implicit = self._field, self._template.implicit
        watched: list[tuple[bool, TemplateField, Anchor | None]] = (
            [] if field is None else [(False, field, field.close)]
        )
        if field is implicit:
            watched += [(True, one, one.open) for one in self._template.fields]
        self._scanned += len(text)
        if self._scanned > MAX_SCANS * self._fed + FREE_SCANS:
            watched = []
        self._from = 0
        self._searches: list[tuple[bool, TemplateField, Search]] = [
            (opens, one, anchor.search()) for opens, one, anchor in watched if anchor is not None
        ]
        for _, _, search in self._searches:
            search.feed(text, ended)

    def _get_hold(self) -> int:
        """Return where the earliest marker may begin that is not decided."""
        hold = self._from + len(self._buffer)
        for _, _, search in self._searches:
            if search.pending is not None:
                hold = min(hold, search.pending, search.found.start if search.found else hold)
        return hold

    def _choose(self) -> tuple[bool, TemplateField, Search] | None:
        """Return the marker that comes first; None if that is not decided. Of several, the longest counts."""
        found = [
            (search.found.start, -search.found.end, not opens, field.name, (opens, field, search))
            for opens, field, search in self._searches
            if search.found is not None and search.pending is None
        ]
        if not found or (best := min(found, key=lambda one: one[:4]))[0] >= self._get_hold():
            return None
        return best[4]

    def _enter(self, field: TemplateField | None, mark: str, groups: dict[str, str]) -> None:
        """Enter a region."""
        self._field, self._mark, self._groups, self._fresh = field, mark, groups, True
        self._quoted = Quotes()
        self._channel = "" if field is None else field.channel
        self._early: EarlyCalls | None = None
        if field is not None and self._channel == "tool" and "tool" not in self._raw:
            self._early = EarlyCalls(field, mark, groups, self._declared, self.calls)
        self.thinking = self._channel == "reasoning" and "reasoning" not in self._raw
        if self._channel in self._raw:
            self._channel = "content"
            self._send_stripped("content", mark)

    def _leave(self, mark: str, cut: bool = False, groups: Mapping[str, str] = NO_GROUPS) -> None:
        """Leave the region, and enter the region outside of all others.

        mark, groups: the closing marker and its groups. cut: a limit ended the text.
        """
        if self._field is not None and self._field.channel in self._raw:
            self._send_stripped("content", mark)
        elif (early := self._early) is not None:
            parts, rest = early.finish(mark, groups, cut)
            self._send_calls(parts)
            self.cut_call |= early.unfinished
            self._send_stripped("content", rest)
        self._enter(self._template.implicit, "", {})

    def _send_calls(self, parts: list[ToolCall]) -> None:
        self._segments += [Segment("tool", call=part) for part in parts]
        self.calls = max([self.calls, *(part.place + 1 for part in parts)])

    def _add_text(self, text: str) -> None:
        """Add text to the region. The buffer has the text after it."""
        field = self._field
        if not text or field is None:
            return
        if self._early is not None:
            self._send_calls(self._early.feed(text))
            if field.parser.name == "json" and not field.parser.options:
                self._quoted.read(text)
        elif self._channel and field.parser.strips:
            self._send_stripped(self._channel, text)
        elif self._channel:
            gap = self._gap.pop(self._channel, "")
            self._gap[self._channel] = ""
            self._send(self._channel, gap + text, 0)

    def _send_stripped(self, channel: str, text: str) -> None:
        """Send text without the white space before the channel's first text and after its last text."""
        begun, inner = channel in self._gap, text.strip()
        if begun and not inner:
            self._gap[channel] += text
        if not inner:
            return
        lead, trail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        before = self._gap.get(channel, "") + lead
        if begun and self._fresh and self._field is not None and self._field.join is not None:
            before = self._field.join
        self._fresh, self._gap[channel] = False, trail
        self._send(channel, (before if begun else "") + inner, len(trail))

    def _send(self, channel: str, text: str, behind: int) -> None:
        """Send text. behind: the characters of the region's text after it."""
        if channel == "reasoning":
            self._send_thought(text, behind + len(self._buffer) + self._behind)
        elif text:
            self._segments.append(Segment("content", text))


class Quotes:
    """Whether a JSON text ends inside a string. There a closing marker closes nothing."""

    def __init__(self) -> None:
        self.inside = False
        self._escape = ""

    def read(self, text: str) -> None:
        """Add text."""
        text, self._escape = self._escape + text, ""
        for found in QUOTES.findall(text):
            self.inside ^= found == '"'
            self._escape = found if found == "\\" else ""


def read_prefix(start: Anchor, prompt: str) -> str:
    """Return what the prompt has of the answer: the text after the last anchor. Without an anchor, nothing: a user's
    text must not open a region."""
    if start.pattern is None:
        found = max((at + len(mark) for mark in start.literals if (at := prompt.rfind(mark)) >= 0), default=None)
    else:
        found = max((one.end for one, _ in find_all_matches(start.pattern, prompt)), default=None)
    return "" if found is None else prompt[found:]
