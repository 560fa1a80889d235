"""The places of a sequence's tokens whose logits are needed without sampling, and the rows for them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

MAX_SCORED = 128  # Rows of one step for prompt logprobs: 128 MiB in float32 for a vocabulary of 256 thousand.
MAX_REPLAYED = 32  # Waiting rows of one replayed sequence.
MAX_REPLAYS = MAX_SCORED // MAX_REPLAYED  # Replayed sequences at once, so that at most MAX_SCORED rows wait.


@dataclass(eq=False, slots=True)
class WantedRows:
    """The places whose logits a sequence needs. For a prompt with logprobs these are all its tokens but the first; for
    a replayed output, those to be processed.

    - places: ascending. The logits of a place come from computing the token before it.
    - done: how many places have their logits.
    - most: the most rows that one step may make.
    - waiting: rows of a replay, [V] each, that wait to be processed. Until then, nothing more is computed.
    """

    places: Sequence[int]
    most: int
    done: int = 0
    waiting: deque[torch.Tensor] = field(default_factory=deque)

    @property
    def next(self) -> int | None:
        """The first place without its logits, or None."""
        return self.places[self.done] if self.done < len(self.places) else None

    def select_places(self, end: int) -> Sequence[int]:
        """Return the places whose logits come from computing all positions before `end`."""
        return self.places[self.done : bisect_right(self.places, end, lo=self.done)]

    def tokens(self, computed: int, rows: int) -> int | None:
        """Return how many tokens may be computed so that at most `rows` rows are made. None: all."""
        if self.waiting:
            return 0
        last = self.done + min(rows, self.most)
        return None if last >= len(self.places) else max(0, self.places[last] - 1 - computed)
