"""Which tokens the text of a response's messages is made of: their logprobs, beside the segments of the text.

Deltas are split at their tokens before they are split into channels, so the tokens of a message spell its text, however
many came at once. Tokens of thoughts, calls and markers are left out, and so is the end token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from tailrace.api.logprobs import Labels, chat_logprobs, delivered
from tailrace.text.output import Delta
from tailrace.text.splitter import Segment, Splitter

Scored = tuple[Segment, list[msgspec.Raw]]


class ScoredSegments:
    """The segments of one answer's text, those of content with the logprobs of their tokens.

    Args:
        top: alternatives per token; None: no logprobs.
    """

    def __init__(self, splitter: Splitter, labels: Labels, top: int | None) -> None:
        self.splitter, self._labels, self._top = splitter, labels, top
        self._text = ""  # all of it
        self._seen = 0  # so much of it has come out, or was left out
        self._tokens = deque[tuple[int, msgspec.Raw]]()  # (where it begins, its entry) of tokens that have not come out

    def feed(self, delta: Delta) -> Iterator[Scored]:
        """The segments that a delta completes; all that is held, where it ends the answer."""
        if self._top is None:
            yield from ((segment, []) for segment in self.splitter.feed(delta.text))
        else:
            for piece in self._pieces(delta, self._top):
                self._text += piece
                yield from self._scored(self.splitter.feed(piece))
        if delta.finish_reason is not None:
            yield from self._scored(self.splitter.flush())

    def _pieces(self, delta: Delta, top: int) -> list[str]:
        """The delta's text, cut before each token."""
        begin, tokens = len(self._text), list(delivered(delta)) if delta.logprobs else []
        if tokens:
            entries = chat_logprobs(self._labels, delta, top).content
            self._tokens += zip((offset for _, _, offset, _ in tokens), entries, strict=True)
        cuts = [min(max(offset - begin, 0), len(delta.text)) for _, _, offset, _ in tokens]
        return [delta.text[i:j] for i, j in zip([0, *cuts], [*cuts, len(delta.text)], strict=True) if i < j]

    def _scored(self, segments: list[Segment]) -> list[Scored]:
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
            entries: list[msgspec.Raw] = []
            while segment.text and self._tokens and self._tokens[0][0] < until:
                start, entry = self._tokens.popleft()
                if segment.channel == "content" and start >= at:
                    entries.append(entry)
            self._seen = max(self._seen, until)
            found.append((segment, entries))
        return found
