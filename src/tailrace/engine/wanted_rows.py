"""Which places of a sequence's tokens want logits that nothing is sampled from, and the rows that came of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

MAX_SCORED = 128  # rows of one step for prompt logprobs: 128 MiB at a vocabulary of 256 thousand in float32
MAX_REPLAYED = 32  # rows of one sequence of a replay that wait to be looked at
MAX_REPLAYS = MAX_SCORED // MAX_REPLAYED  # sequences of replays that run at once, so no more rows wait in all


@dataclass(eq=False, slots=True)
class WantedRows:
    """Of a prompt whose logprobs are asked for: all its tokens but the first. Of an output that is replayed: those that
    are looked at.

    places: ascending. The logits of a place come from computing the token before it. done: so many have been had. most:
    rows that one step may make. waiting: rows of a replay, [V] each, that have not been looked at; until they have
    been, nothing more is computed.
    """

    places: Sequence[int]
    most: int
    done: int = 0
    waiting: deque[torch.Tensor] = field(default_factory=deque)

    @property
    def next(self) -> int | None:
        """The first place that has not been had."""
        return self.places[self.done] if self.done < len(self.places) else None

    def upto(self, end: int) -> Sequence[int]:
        """The places whose logits come from computing all before position `end`."""
        return self.places[self.done : bisect_right(self.places, end, lo=self.done)]

    def tokens(self, computed: int, rows: int) -> int | None:
        """How many tokens may be computed so that no more than `rows` rows are made. None: all."""
        if self.waiting:
            return 0
        last = self.done + min(rows, self.most)
        return None if last >= len(self.places) else max(0, self.places[last] - 1 - computed)
