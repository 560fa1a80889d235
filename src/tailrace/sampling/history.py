"""What one slot remembers of its sequence: distinct tokens with counts, and the last few ids. Updated in O(1) per token."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class History:
    """Sparse counts of a sequence. `ids`, `in_prompt` and `count` are aligned: one entry per distinct token.

    Args:
        prompt, output: token ids so far.
        remember: how many of the last ids `tail` keeps (the longest banned phrase less one).
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int], remember: int) -> None:
        prompt, output = list(prompt), list(output)
        self.remember = remember
        self.tail: list[int] = (prompt + output)[-remember:] if remember else []
        self.index: dict[int, int] = {}
        for token in (*prompt, *output):
            self.index.setdefault(token, len(self.index))
        self.ids = torch.tensor(list(self.index), dtype=torch.int64)
        self.in_prompt = torch.zeros(len(self.index), dtype=torch.bool)
        self.in_prompt[[self.index[token] for token in set(prompt)]] = True
        self.count = torch.zeros(len(self.index), dtype=torch.float32)
        if output:
            places = torch.tensor([self.index[token] for token in output])
            self.count.index_add_(0, places, torch.ones(len(output)))

    @property
    def size(self) -> int:
        """Distinct tokens; the aligned tensors may have room for more."""
        return len(self.index)

    def append(self, token: int) -> None:
        """One more output token."""
        if self.remember:
            self.tail = [*self.tail[-(self.remember - 1) :], token] if self.remember > 1 else [token]
        place = self.index.setdefault(token, len(self.index))
        if place == self.ids.numel():
            room = max(16, place)  # doubling: amortised O(1)
            self.ids = torch.cat([self.ids, torch.zeros(room, dtype=torch.int64)])
            self.in_prompt = torch.cat([self.in_prompt, torch.zeros(room, dtype=torch.bool)])
            self.count = torch.cat([self.count, torch.zeros(room)])
        self.ids[place] = token
        self.count[place] += 1

    def copy(self) -> History:
        """An independent copy, for a fork."""
        twin = object.__new__(History)
        twin.remember, twin.tail, twin.index = self.remember, list(self.tail), dict(self.index)
        twin.ids, twin.in_prompt, twin.count = self.ids.clone(), self.in_prompt.clone(), self.count.clone()
        return twin
