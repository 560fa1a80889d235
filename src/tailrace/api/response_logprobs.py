"""Which tokens the text of a response is made of: their logprobs, and why they came, beside the segments of the text.

Deltas are split at their tokens before they are split into channels, so the tokens of a message spell its text, however
many came at once. Tokens of calls and markers are left out, and so is the end token; those of thoughts have no
logprobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from tailrace.api.logprobs import Labels, chat_logprobs, iter_delivered_tokens
from tailrace.text.output import Delta
from tailrace.text.splitter import Segment, Splitter


class Reports(NamedTuple):
    """Of the tokens of a segment: their logprobs, and why they came; empty where that is not asked for."""

    logprobs: list[msgspec.Raw]
    explanations: list[msgspec.Raw]


Scored = tuple[Segment, Reports]


class TokenReport(NamedTuple):
    """A token that has not come out: where it begins, and what is reported of it."""

    begin: int
    logprobs: msgspec.Raw | None
    explanation: msgspec.Raw | None


class ScoredSegments:
    """The segments of one answer's text, with what is reported of their tokens.

    Args:
        top: alternatives per token; None: no logprobs. explains: why tokens came is asked for.
    """

    def __init__(self, splitter: Splitter, labels: Labels, top: int | None, explains: bool = False) -> None:
        self.splitter, self.labels, self._top, self._explains = splitter, labels, top, explains
        self._text = ""  # all of it
        self._seen = 0  # so much of it has come out, or was left out
        self._tokens = deque[TokenReport]()

    def feed(self, delta: Delta, records: Sequence[msgspec.Raw] = ()) -> Iterator[Scored]:
        """Return the segments that a delta completes, and all held segments if the delta ends the answer. records:
        explanations.encode_records of the delta, if the request asks for them."""
        if self._top is None and not self._explains:
            yield from ((segment, Reports([], [])) for segment in self.splitter.feed(delta.text))
        else:
            for piece in self._cut_delta(delta, records):
                self._text += piece
                yield from self._attach_tokens(self.splitter.feed(piece))
        if delta.finish_reason is not None:
            yield from self._attach_tokens(self.splitter.flush(delta.cut))

    def _cut_delta(self, delta: Delta, records: Sequence[msgspec.Raw]) -> list[str]:
        """The delta's text, cut before each token."""
        begin, offsets = len(self._text), shown_offsets(delta)
        entries: list[msgspec.Raw | None] = [None] * len(offsets)
        if self._top is not None and delta.logprobs:
            entries[:] = chat_logprobs(self.labels, delta, self._top).content
        self._tokens += map(TokenReport, offsets, entries, records or [None] * len(offsets))
        cuts = [min(max(offset - begin, 0), len(delta.text)) for offset in offsets]
        return [delta.text[i:j] for i, j in zip([0, *cuts], [*cuts, len(delta.text)], strict=True) if i < j]

    def _attach_tokens(self, segments: list[Segment]) -> list[Scored]:
        """Each segment with the tokens that begin in it. Segments are found from the last one backwards: what lies
        between them are markers and calls. One that is not found is none of the tokens' (an opening marker that the
        prompt has written)."""
        found: list[Scored] = []
        spans: list[tuple[int, int]] = []
        end = len(self._text) - self.splitter.undecided
        for segment in reversed(segments):
            until = end
            if segment.text and (at := self._text.rfind(segment.text, self._seen, end)) >= 0:
                end, until = at, at + len(segment.text)
            spans.append((end, until))
        for segment, (at, until) in zip(segments, reversed(spans), strict=True):
            reports = Reports([], [])
            while segment.text and self._tokens and self._tokens[0].begin < until:
                token = self._tokens.popleft()
                if token.begin < at:
                    continue
                if segment.channel == "content" and token.logprobs is not None:
                    reports.logprobs.append(token.logprobs)
                if token.explanation is not None:
                    reports.explanations.append(token.explanation)
            self._seen = max(self._seen, until)
            found.append((segment, reports))
        return found


def shown_offsets(delta: Delta) -> list[int]:
    """Where the delta's tokens begin, of those that are reported."""
    if delta.logprobs:
        return [offset for _, _, offset, _ in iter_delivered_tokens(delta)]
    shown = zip(delta.offsets, range(len(delta.explanations or ())), strict=False)
    return [offset for offset, place in shown if place not in delta.spelt or delta.spelt[place] is not None]
