"""Drafts from a predicted output: the text that a client expects, such as the file that it wants to be edited.

A reader follows an output along the prediction. While both agree, the next predicted tokens are the drafts. After a
difference the reader looks for the place where the prediction continues, by the last two tokens of the output: all
places of all pairs of predicted tokens are sorted. Of several places it takes the one with the longest agreement before
it, then the nearest one behind the difference, then the nearest one before it. So after an inserted, deleted, changed
or moved line the drafts return within a token or two, also if the text is divided into other tokens there.

The reader's state is a function of the prediction and the output, not of steps and clocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np

REACH = 16  # Tokens whose agreement is compared.
CANDIDATES = 8  # Places on each side of a difference that are compared.
NEAR = 16  # Tokens behind a difference among which one token is enough to find the place again.
SURE = 4  # Tokens in a row that do not agree by chance.
PER_MATCH = 2  # Drafts for each token in a row that agrees.


class Prediction:
    """The tokens of a predicted output, and the places of each pair of them. The sequences of a request share it.

    Memory: 12 bytes per token once an output has differed. The index of 65,536 tokens is made in some 10 ms.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)

    @cached_property
    def _pairs(self) -> tuple[array[int], array[int]]:
        """The pairs of neighbours, as one number each, sorted, and the places of their first tokens. Places of equal
        pairs ascend."""
        tokens = np.array(self.tokens, dtype=np.int64)
        pairs = (tokens[:-1] << 32) | tokens[1:]
        order = np.argsort(pairs, kind="stable")
        return array("q", pairs[order].tobytes()), array("i", order.astype(np.int32).tobytes())

    def find_place(self, recent: Sequence[int], difference: int) -> tuple[int, int]:
        """Return the place behind the best occurrence of the last tokens, and how many tokens before it agree. (0, 0)
        if the last two tokens do not occur. difference: where the output left the prediction."""
        if len(recent) < 2 or len(self.tokens) < 2:
            return 0, 0
        pairs, places = self._pairs
        pair = recent[-2] << 32 | recent[-1]
        first = bisect_left(pairs, pair)
        last = bisect_right(pairs, pair, first)
        middle = bisect_left(places, difference - 1, first, last)
        behind = places[middle : min(last, middle + CANDIDATES)]
        before = places[max(first, middle - CANDIDATES) : middle]
        best, most = 0, 0
        for place in (*behind, *reversed(before)):
            if (agreed := self._count_agreeing(recent, place + 2)) > most:
                best, most = place + 2, agreed
        return best, most

    def _count_agreeing(self, recent: Sequence[int], place: int) -> int:
        """Return how many of the last tokens are the tokens before this place. The last two are."""
        tokens, count, most = self.tokens, 2, min(len(recent), place)
        while count < most and tokens[place - 1 - count] == recent[-1 - count]:
            count += 1
        return count


class PredictionReader:
    """The place that the output of one sequence has reached in a prediction."""

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction
        self._counts = array("i")  # after each output token, how many predicted tokens the output has so far
        self._at: int | None = 0  # the place of the predicted token that should come next; None: unknown
        self._agreed = 0  # tokens before it that agree
        self._difference: int | None = None  # where the output last left the prediction, after it was surely there
        self._found = bytearray(len(prediction.tokens))
        self._unmarked = 0  # output tokens since some were marked as found

    @property
    def num_found(self) -> int:
        """How many of the predicted tokens the output has. Each counts once, in a row of SURE or more. A shorter
        prediction counts if the output has all of it."""
        return self._counts[-1] if self._counts else 0

    @property
    def num_ready(self) -> int:
        """The most drafts that `draft` returns now."""
        return 0 if self._at is None else min(PER_MATCH * max(1, self._agreed), len(self._found) - self._at)

    def read(self, tokens: Sequence[int], start: int) -> None:
        """Read the new tokens of a sequence, whose output begins at `start`, up to a negative one (a reference)."""
        if len(self._counts) > len(tokens) - start:  # the sequence has been rewound
            del self._counts[len(tokens) - start :]
            self._at = None
        for end in range(start + len(self._counts) + 1, len(tokens) + 1):
            if tokens[end - 1] < 0:
                break
            self._counts.append(self.num_found + self._read_last(tokens, start, end))

    def draft(self, count: int) -> list[int]:
        """Return at most `count` drafts; none if the place is unknown."""
        at = self._at or 0
        return list(self._prediction.tokens[at : at + min(count, self.num_ready)])

    def _read_last(self, tokens: Sequence[int], start: int, end: int) -> int:
        """Read the token before `end`. Return how many predicted tokens have been found with it."""
        predicted, at = self._prediction.tokens, self._at
        self._unmarked += 1
        if at is not None and at < len(predicted) and predicted[at] == tokens[end - 1]:
            self._at, self._agreed = at + 1, self._agreed + 1
        else:
            self._at, self._agreed = self._find_again(tokens[max(start, end - REACH) : end])
        if self._at is None or self._agreed < min(SURE, len(predicted)):
            return 0
        return self._mark_found(self._at)

    def _find_again(self, recent: Sequence[int]) -> tuple[int | None, int]:
        """Return the place where the prediction continues, and how many tokens before it agree."""
        predicted, difference = self._prediction.tokens, self._difference
        place, agreed = self._prediction.find_place(recent, difference or 0)
        if agreed:
            return place, agreed
        if difference is None:
            return None, 0
        if recent[-1] in predicted[difference : difference + NEAR]:
            return predicted.index(recent[-1], difference) + 1, 1
        return min(difference + 1, len(predicted)), 0  # one token may have replaced another

    def _mark_found(self, at: int) -> int:
        """Mark the tokens that agree as found, and remember their end. Return how many are new."""
        self._difference, first, end = at, at, at - min(self._agreed, self._unmarked)
        self._unmarked = 0
        while first > end and not self._found[first - 1]:
            first -= 1
            self._found[first] = True
        return at - first
