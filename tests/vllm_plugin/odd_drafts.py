"""A drafter for vLLM's method custom_class. Its lists have every shape that vLLM lets pass: with −1 or an id beyond the
vocabulary at any place, with ids behind it, with nothing else, short, empty."""

from __future__ import annotations

import random
from typing import Any

from launched import VOCAB

NONE = (-1, VOCAB, VOCAB + 2)


class OddDrafts:
    """Guesses what has followed the last token before, so that some drafts stand."""

    def __init__(self, config: Any) -> None:
        self.count = config.speculative_config.num_speculative_tokens
        self.random = random.Random(0)

    def load_model(self, model: Any) -> None:
        """vLLM's worker on a CPU asks each drafter to do so."""

    def propose(self, sampled_token_ids: list[list[int]], lengths: Any, token_ids: Any, **_: Any) -> list[list[int]]:
        """A list for each request; an empty one where no token was drawn."""
        rows = enumerate(sampled_token_ids)
        return [self._odd(token_ids[row, : lengths[row]].tolist()) if drawn else [] for row, drawn in rows]

    def _odd(self, told: list[int]) -> list[int]:
        last = next((place for place in range(len(told) - 2, -1, -1) if told[place] == told[-1]), len(told) - 1)
        drafts = (told[last + 1 :] + [told[-1]] * self.count)[: self.count]
        for place in range(self.count):
            if self.random.random() < 0.2:
                drafts[place] = self.random.choice(NONE)
        if self.random.random() < 0.1:
            drafts = [-1] * self.count
        return drafts[: self.random.choice((0, 1, self.count, self.count))]
