"""Counts the tokens of thoughts. Knows no HTTP."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.text.reasoning import Markers

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer


class ThinkingTokens:
    """The tokens from the opening marker of each answer's first thought to its closing one, both included.

    Counted on the tokens themselves: how their text is cut into deltas does not matter.

    Args:
        opened: the prompt ends inside a thought.
    """

    def __init__(self, tokenizer: Tokenizer, markers: Markers, opened: bool) -> None:
        self._tokenizer = tokenizer
        opening, closing = (marker.encode() for marker in markers)
        self._thoughts = defaultdict[int, Thought](lambda: Thought(opening, closing, opened))

    @property
    def total(self) -> int:
        """Of all choices."""
        return sum(thought.count for thought in self._thoughts.values())

    def feed(self, choice: int, token_ids: Sequence[int]) -> None:
        """More tokens of a choice."""
        thought = self._thoughts[choice]
        for id in token_ids:
            if thought.over:
                return
            thought.push(self._tokenizer.bytes_of(id))


class Thought:
    """One answer up to the end of its first thought."""

    def __init__(self, opening: bytes, closing: bytes, opened: bool) -> None:
        self._opening, self._closing = opening, closing
        self._text = bytearray()
        self._ends: list[int] = []  # where each token ends in the text
        self._begin = 0 if opened else None  # of the thought, marker included
        self._from = 0  # where the next marker may begin
        self.over = False

    @property
    def count(self) -> int:
        """Its tokens so far."""
        return 0 if self._begin is None else len(self._ends) - bisect_right(self._ends, self._begin)

    def push(self, spelt: bytes) -> None:
        """One more token."""
        self._text += spelt
        self._ends.append(len(self._text))
        if self._begin is None:
            if (at := self._find(self._opening)) < 0:
                return
            self._begin, self._from = at, at + len(self._opening)
        self.over = self._find(self._closing) >= 0

    def _find(self, marker: bytes) -> int:
        """Where the marker is; -1 where it is not yet."""
        at = self._text.find(marker, self._from)
        if at < 0:
            self._from = max(self._from, len(self._text) - len(marker) + 1)
        return at
