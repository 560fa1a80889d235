"""Grammar of answers whose texts and calls are messages or channels with markers (Kimi K3, Muse, Inkling)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.grammar_writer import (
    CallGrammar,
    GrammarWriter,
    added_tokens,
    text_without,
    write_names,
)


class AnswerFrame(NamedTuple):
    """The markers of the parts of an answer that are no calls.

    A model may leave out a marker that its prompt has already, and the last markers of an answer.

    - `texts`: the markers before a text. The first one opens the text for the user.
    - `end`: the marker after a text.
    - `between`: the text between two parts, or the empty string.
    - `last`: markers that may end an answer.
    - `named`: a function's name may stand before the marker of its call.
    """

    texts: tuple[str, ...]
    end: str
    between: str
    last: tuple[str, ...]
    named: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Return all markers."""
        return tuple(filter(None, (*self.texts, self.end, self.between, *self.last)))


class FrameWriter:
    """A writer of the grammar of a whole answer in a frame.

    Args:
        calls: the grammar of the calls.
        openings: the markers of calls and of other blocks, which no text may hold.

    Attributes:
        forbidden: what a text without a marker before it can't hold.
    """

    def __init__(
        self, frame: AnswerFrame, writer: GrammarWriter, calls: CallGrammar, openings: tuple[str, ...]
    ) -> None:
        self._frame, self._writer, self._calls = frame, writer, calls
        self._between, self._end = writer.mark(frame.between), writer.mark(frame.end)
        self._last = f"({' | '.join(map(writer.mark, frame.last))})?"
        self._name = f"({write_names(writer)})?" if frame.named else ""
        self._call = f"{writer.mark(calls.opening)} {calls.rest}"
        self.forbidden = list_forbidden(frame, writer, openings)

    def write_forced(self) -> str:
        """Return the grammar of calls only."""
        return f"{f'({self._between} {self._name})?' if self._between else ''} {self._call}"

    def write_content(self, schema: Mapping[str, Any]) -> str:
        """Return the grammar of calls, or of JSON that fits the schema."""
        opening = self._open(self._frame.texts[0])
        lead = f"({self._between})?" if self._between else ""
        said = f"{lead} ({opening})? {self._writer.write_json(schema)} ({self._end})?"
        return f"({self.write_forced()} | {said}) {self._last}"

    def write_free(self, text: str, calls: str) -> str:
        """Return the grammar of texts with optional calls after them.

        Args:
            text: the rule of a text without a marker before it. calls: the grammar of calls behind such a text.
        """
        opening = self._calls.opening
        decides = self._writer.head_of(opening)[1]  # else it is a text, unless a marker with a token follows
        inside = [one for one in self.forbidden if decides or one != opening]
        within = self._writer.rule("WITHIN", text_without(*inside))
        then = f"({self._end} ({self._between} part)?)?"
        said = self._writer.rule("said", f"({' | '.join(map(self._open, self._frame.texts))}) {within}? {then}")
        self._writer.rule("part", f"{self._name} {self._call} | {said}")
        return f"({self._between} part | {said} | {text}? {then} | {calls}) {self._last}"

    def _open(self, marker: str) -> str:
        """Return the grammar of a text's marker. It shares its beginning with the marker of calls: a matcher does not
        go back to a shorter match."""
        shared = self._calls.opening if marker.startswith(self._calls.opening) else ""
        return f"{self._writer.mark(shared)} {self._writer.mark(marker.removeprefix(shared))}"


def has_frame(frame: AnswerFrame | None, writer: GrammarWriter) -> bool:
    """Return True if each marker of the frame has a token of its own. Otherwise the markers are a part of the text."""
    return frame is not None and all(map(added_tokens(writer.tokenizer).search, frame.markers))


def list_forbidden(frame: AnswerFrame, writer: GrammarWriter, openings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tokens of all markers, and the markers without a token."""
    tokens = added_tokens(writer.tokenizer)
    found = [part for marker in (*frame.markers, *openings) for part in tokens.findall(marker) or [marker]]
    return tuple(dict.fromkeys(found))
