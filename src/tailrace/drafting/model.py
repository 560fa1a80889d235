"""A draft model: any causal language model with the target's vocabulary, on a paged cache of its own (Leviathan et al.,
arXiv 2211.17192).

Its cache follows the target: accepted tokens are kept, rejected ones are cut, unseen ones are computed before it
drafts.
All sequences go through it together: first the tokens that each has to catch up on, then one token each per draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tailrace.drafting.base import Draft, DraftRequest, TargetStates
from tailrace.drafting.pages import Pages
from tailrace.drafting.pick import Picker, Picks
from tailrace.drafting.prefix import standing
from tailrace.errors import ConfigError
from tailrace.options import MAX_DRAFTS
from tailrace.runners.base import ModelRunner
from tailrace.runners.flat_batch import lay_out


class DraftModel:
    """See drafting.base.Drafter.

    A sequence gets no drafts while its prompt is not yet in the draft model's cache, where the cache has no room for
    it, where it holds a token that the draft model does not know, and beyond the draft model's longest sequence.

    Args:
        runner: not allocated yet. num_blocks, block_size: of its cache. chunk: how many tokens of prompts one call
            feeds at most; a sequence that has only its last drafts to catch up on is always fed.

    Raises:
        ValueError: one of the numbers is not at least 1.
        ConfigError: the cache is too small for the runner.
    """

    draws = True
    captures: tuple[int, ...] = ()

    def __init__(self, runner: ModelRunner, picker: Picker, num_blocks: int, block_size: int, chunk: int = 512) -> None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.runner, self.picker, self.chunk = runner, picker, chunk
        self.pages = Pages(num_blocks, block_size)
        # slot → the tokens whose positions the cache holds; the slots asked for last come last
        self.held: dict[int, list[int]] = {}
        runner.allocate(num_blocks)

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        asks = [replace(ask, count=min(ask.count, self._reach(ask))) for ask in asks]
        fed = self._plan(asks)
        tables = self.pages.tables([ask.slot for ask in asks])
        with self.picker.start(asks) as picks:
            ready = [i for i, end in fed.items() if end == len(asks[i].tokens)]
            going = self._forward(picks, fed, ready, tables) if fed else []
            while going:
                fed = {i: len(asks[i].tokens) + len(picks.tokens[i]) for i in going}
                going = self._forward(picks, fed, going, tables)
            return picks.drafts()

    def observe(self, seen: TargetStates) -> None:
        pass

    def remove(self, slot: int) -> None:
        self.held.pop(slot, None)
        self.pages.release(slot)

    # ---- inside

    def _reach(self, ask: DraftRequest) -> int:
        """Drafts that the model's longest sequence leaves room for: the last one is not fed."""
        return self.runner.max_model_len + 1 - len(ask.tokens)

    def _plan(self, asks: Sequence[DraftRequest]) -> dict[int, int]:
        """Index of the ask → up to which position it is fed in the first pass. Asks that are not fed are left out. Only
        the last one may be fed a part: when the chunk is used up, the others wait."""
        for ask in asks:
            self._rewind(ask)
        asked = {ask.slot for ask in asks}
        owing = {i: len(ask.tokens) - len(self.held[ask.slot]) for i, ask in enumerate(asks) if self._admit(ask, asked)}
        left, plan = self.chunk, {}
        for i, count in sorted(owing.items(), key=lambda item: item[1]):  # the shortest first: it drafts soonest
            if count > MAX_DRAFTS + 1:
                count = min(count, left)
                left -= count
            if count:
                plan[i] = len(self.held[asks[i].slot]) + count
        return plan

    def _rewind(self, ask: DraftRequest) -> None:
        """Cut what the cache holds of another continuation. The last token is always fed, for its logits."""
        held = self.held.pop(ask.slot, [])
        del held[min(standing(held, ask.tokens), len(ask.tokens) - 1) :]
        self.pages.cut(ask.slot, len(held))
        self.held[ask.slot] = held

    def _admit(self, ask: DraftRequest, asked: set[int]) -> bool:
        """Take blocks for all tokens that the ask may feed, from slots that nobody asks for if need be. An ask that
        gets none gives back its blocks: sequences that wait for each other's blocks would hold them for ever."""
        length = len(ask.tokens) + ask.count - 1
        idle = [slot for slot in self.held if slot not in asked]
        lacking = self.pages.lacking(ask.slot, length) - self.pages.pool.num_free
        known = max(ask.tokens[len(self.held[ask.slot]) :]) < self.runner.vocab_size
        if not known or ask.count < 1 or lacking > sum(len(self.pages.blocks.get(slot, ())) for slot in idle):
            self.remove(ask.slot)
            return False
        while not self.pages.grow(ask.slot, length):
            self.remove(idle.pop(0))
        return True

    def _forward(self, picks: Picks, fed: dict[int, int], wanted: list[int], tables: torch.Tensor) -> list[int]:
        """Feed each ask up to its position, and pick a draft for those that are wanted; they come first. Returns the
        asks that want another draft."""
        held = [self.held[picks.asks[i].slot] for i in fed]
        first = [len(tokens) for tokens in held]
        new = [picks.since(i, start)[: end - start] for (i, end), start in zip(fed.items(), first, strict=True)]
        batch = lay_out(new, first, tables[list(fed)], self.pages.block_size, range(len(wanted)))
        logits = self.runner.forward(batch)
        for known, tokens in zip(held, new, strict=True):
            known += tokens
        going = picks.take(logits, wanted)
        return [i for i in going if picks.tokens[i][-1] < self.runner.vocab_size]


def check_vocabulary(target: Sequence[str], draft: Sequence[str]) -> None:
    """Whether a draft model's ids mean what the target's do.

    Args:
        target, draft: the token of each id; "" where there is none. One may be longer: ids that only one of them has
            are never drafted.

    Raises:
        ConfigError: an id is one token here and another there, or they share none.
    """
    pairs = list(zip(target, draft, strict=False))
    for i, (mine, other) in enumerate(pairs):
        if mine != other and mine and other:
            raise ConfigError(f"the draft model has another vocabulary: id {i} is {other!r}, the target's is {mine!r}")
    if not any(mine and other for mine, other in pairs):
        raise ConfigError("the draft model has another vocabulary: no id has a token in both")
