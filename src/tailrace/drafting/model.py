"""A draft model: any causal language model with the target's vocabulary, on a paged cache of its own (Leviathan et al.,
arXiv 2211.17192).

Its cache follows the target: accepted tokens are kept, rejected ones are removed, missing ones are computed before it
drafts. One batch has all sequences: first each sequence's missing tokens, then one token per draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.drafting.draft_sampler import DraftBatch, DraftSampler
from tailrace.drafting.pages import Pages
from tailrace.drafting.prefix import count_valid_prefix
from tailrace.errors import ConfigError
from tailrace.request.options import MAX_DRAFTS
from tailrace.runners.base import ModelRunner
from tailrace.runners.flat_batch import lay_out


class DraftModel(Drafter):
    """Drafter with a model of its own.

    A sequence gets no drafts in these cases:

    - its prompt is not yet in the draft model's cache
    - the cache has no room for it
    - it holds a token that the draft model does not know
    - it is beyond the draft model's longest sequence

    Args:
        runner: not allocated yet.
        num_blocks, block_size: of its cache.
        chunk: how many tokens of prompts one call feeds at most. A sequence that has only its last drafts to catch up
            on is always fed.

    Raises:
        ValueError: one of the numbers is not at least 1.
        ConfigError: the cache is too small for the runner.
    """

    draws = True

    def __init__(
        self, runner: ModelRunner, draft_sampler: DraftSampler, num_blocks: int, block_size: int, chunk: int = 512
    ) -> None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.runner, self.draft_sampler, self.chunk = runner, draft_sampler, chunk
        self.pages = Pages(num_blocks, block_size)
        # slot → the tokens whose positions the cache holds; the most recently used slots come last
        self.held: dict[int, list[int]] = {}
        self.cache_bytes = num_blocks * runner.block_bytes
        runner.allocate(num_blocks)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        requests = [replace(request, count=min(request.count, self._count_fitting(request))) for request in requests]
        fed = self._plan_feeding(requests)
        tables = self.pages.make_block_tables([request.slot for request in requests])
        with self.draft_sampler.start(requests) as draft_batch:
            ready = [i for i, end in fed.items() if end == len(requests[i].tokens)]
            unfinished = self._feed_requests(draft_batch, fed, ready, tables) if fed else []
            while unfinished:
                fed = {i: len(requests[i].tokens) + len(draft_batch.tokens[i]) for i in unfinished}
                unfinished = self._feed_requests(draft_batch, fed, unfinished, tables)
            return draft_batch.drafts()

    def remove(self, slot: int) -> None:
        self.held.pop(slot, None)
        self.pages.release(slot)

    # ---- inside

    def _count_fitting(self, request: DraftRequest) -> int:
        """Return the number of drafts that the model's longest sequence leaves room for. The last one is not fed."""
        return self.runner.max_model_len + 1 - len(request.tokens)

    def _plan_feeding(self, requests: Sequence[DraftRequest]) -> dict[int, int]:
        """Return the index of each request in the first pass, and the position up to which it is fed.

        Only the last one may be fed in part: when the chunk is used up, the others wait.
        """
        for request in requests:
            self._rewind_cache(request)
        asked = {request.slot for request in requests}
        owing = {
            i: len(request.tokens) - len(self.held[request.slot])
            for i, request in enumerate(requests)
            if self._allocate_blocks(request, asked)
        }
        left, plan = self.chunk, {}
        for i, count in sorted(owing.items(), key=lambda item: item[1]):  # the shortest first: it can draft soonest
            if count > MAX_DRAFTS + 1:
                count = min(count, left)
                left -= count
            if count:
                plan[i] = len(self.held[requests[i].slot]) + count
        return plan

    def _rewind_cache(self, request: DraftRequest) -> None:
        """Drop cached positions that belong to another continuation. The last token is always fed, for its logits."""
        held = self.held.pop(request.slot, [])
        del held[min(count_valid_prefix(held, request.tokens), len(request.tokens) - 1) :]
        self.pages.cut(request.slot, len(held))
        self.held[request.slot] = held

    def _allocate_blocks(self, request: DraftRequest, asked: set[int]) -> bool:
        """Take blocks for all tokens that the request may feed; if necessary, from slots that are not in this step.

        A request that gets no blocks releases its own. Otherwise sequences could wait for each other forever.
        """
        length = len(request.tokens) + request.count - 1
        idle = [slot for slot in self.held if slot not in asked]
        lacking = self.pages.count_missing_blocks(request.slot, length) - len(self.pages.free)
        known = max(request.tokens[len(self.held[request.slot]) :]) < self.runner.vocab_size
        if not known or request.count < 1 or lacking > sum(len(self.pages.blocks.get(slot, ())) for slot in idle):
            self.remove(request.slot)
            return False
        while not self.pages.grow(request.slot, length):
            self.remove(idle.pop(0))
        return True

    def _feed_requests(
        self, draft_batch: DraftBatch, fed: dict[int, int], wanted: list[int], tables: torch.Tensor
    ) -> list[int]:
        """Feed each request up to its position, and sample a draft for the wanted ones, which come first.

        Returns the requests that want another draft.
        """
        held = [self.held[draft_batch.requests[i].slot] for i in fed]
        first = [len(tokens) for tokens in held]
        new = [
            draft_batch.slice_tokens(i, start)[: end - start]
            for (i, end), start in zip(fed.items(), first, strict=True)
        ]
        batch = lay_out(new, first, tables[list(fed)], self.pages.block_size, range(len(wanted)))
        logits = self.runner.forward(batch)
        for known, tokens in zip(held, new, strict=True):
            known += tokens
        unfinished = draft_batch.sample(logits, wanted)
        return [i for i in unfinished if draft_batch.tokens[i][-1] < self.runner.vocab_size]


def check_vocabulary(target: Sequence[str], draft: Sequence[str]) -> None:
    """Raise ConfigError unless a draft model's ids mean the same tokens as the target's.

    Args:
        target, draft: the token of each id; "" for an id without a token. One may be longer: ids that only one of them
            has are never drafted.

    Raises:
        ConfigError: an id has different tokens, or the two share no id.
    """
    pairs = list(zip(target, draft, strict=False))
    for i, (mine, other) in enumerate(pairs):
        if mine != other and mine and other:
            raise ConfigError(f"the draft model has another vocabulary: id {i} is {other!r}, the target's is {mine!r}")
    if not any(mine and other for mine, other in pairs):
        raise ConfigError("the draft model has another vocabulary: no id has a token in both")
