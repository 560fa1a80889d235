"""A draft model: any causal language model with the target's vocabulary, on a paged cache of its own (Leviathan et al.,
arXiv 2211.17192).

Its cache follows the target: accepted tokens are kept, rejected ones are cut off, missing ones are computed before it
drafts. All sequences go through it together: first the tokens that each of them lacks, then one token each per draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tailrace.drafting.base import Draft, DraftRequest, TargetStates
from tailrace.drafting.draft_sampler import DraftBatch, DraftSampler
from tailrace.drafting.pages import Pages
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

    def __init__(
        self, runner: ModelRunner, draft_sampler: DraftSampler, num_blocks: int, block_size: int, chunk: int = 512
    ) -> None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.runner, self.draft_sampler, self.chunk = runner, draft_sampler, chunk
        self.pages = Pages(num_blocks, block_size)
        # slot → the tokens whose positions the cache holds; the slots asked for last come last
        self.held: dict[int, list[int]] = {}
        self.cache_bytes = num_blocks * runner.block_bytes
        runner.allocate(num_blocks)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        requests = [replace(request, count=min(request.count, self._reach(request))) for request in requests]
        fed = self._plan(requests)
        tables = self.pages.tables([request.slot for request in requests])
        with self.draft_sampler.start(requests) as draft_batch:
            ready = [i for i, end in fed.items() if end == len(requests[i].tokens)]
            unfinished = self._forward(draft_batch, fed, ready, tables) if fed else []
            while unfinished:
                fed = {i: len(requests[i].tokens) + len(draft_batch.tokens[i]) for i in unfinished}
                unfinished = self._forward(draft_batch, fed, unfinished, tables)
            return draft_batch.drafts()

    def observe(self, seen: TargetStates) -> None:
        pass

    def remove(self, slot: int) -> None:
        self.held.pop(slot, None)
        self.pages.release(slot)

    # ---- inside

    def _reach(self, request: DraftRequest) -> int:
        """Drafts that the model's longest sequence leaves room for: the last one is not fed."""
        return self.runner.max_model_len + 1 - len(request.tokens)

    def _plan(self, requests: Sequence[DraftRequest]) -> dict[int, int]:
        """Index of each request that is fed in the first pass → the position up to which it is fed. Only the last one
        may be fed in part: when the chunk is used up, the others wait."""
        for request in requests:
            self._rewind(request)
        asked = {request.slot for request in requests}
        owing = {
            i: len(request.tokens) - len(self.held[request.slot])
            for i, request in enumerate(requests)
            if self._admit(request, asked)
        }
        left, plan = self.chunk, {}
        for i, count in sorted(owing.items(), key=lambda item: item[1]):  # the shortest first: it drafts soonest
            if count > MAX_DRAFTS + 1:
                count = min(count, left)
                left -= count
            if count:
                plan[i] = len(self.held[requests[i].slot]) + count
        return plan

    def _rewind(self, request: DraftRequest) -> None:
        """Cut what the cache holds of another continuation. The last token is always fed, for its logits."""
        held = self.held.pop(request.slot, [])
        del held[min(standing(held, request.tokens), len(request.tokens) - 1) :]
        self.pages.cut(request.slot, len(held))
        self.held[request.slot] = held

    def _admit(self, request: DraftRequest, asked: set[int]) -> bool:
        """Take blocks for all tokens that the request may feed; if need be, from slots that are not in this step. A
        request that gets no blocks gives back what it has. Otherwise sequences could wait for each other for ever."""
        length = len(request.tokens) + request.count - 1
        idle = [slot for slot in self.held if slot not in asked]
        lacking = self.pages.lacking(request.slot, length) - self.pages.pool.num_free
        known = max(request.tokens[len(self.held[request.slot]) :]) < self.runner.vocab_size
        if not known or request.count < 1 or lacking > sum(len(self.pages.blocks.get(slot, ())) for slot in idle):
            self.remove(request.slot)
            return False
        while not self.pages.grow(request.slot, length):
            self.remove(idle.pop(0))
        return True

    def _forward(
        self, draft_batch: DraftBatch, fed: dict[int, int], wanted: list[int], tables: torch.Tensor
    ) -> list[int]:
        """Feed each request up to its position, and sample a draft for the wanted ones, which come first. Returns the
        requests that want another draft."""
        held = [self.held[draft_batch.requests[i].slot] for i in fed]
        first = [len(tokens) for tokens in held]
        new = [draft_batch.since(i, start)[: end - start] for (i, end), start in zip(fed.items(), first, strict=True)]
        batch = lay_out(new, first, tables[list(fed)], self.pages.block_size, range(len(wanted)))
        logits = self.runner.forward(batch)
        for known, tokens in zip(held, new, strict=True):
            known += tokens
        unfinished = draft_batch.sample(logits, wanted)
        return [i for i in unfinished if draft_batch.tokens[i][-1] < self.runner.vocab_size]


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
