"""Drafts of a whole block in one pass (drafting/block_head.py; DFlash, arXiv 2602.06036; DFlash2; DSpark).

A block is the last token, whose state the target has not computed yet, and masks after it. The head's output at a mask
predicts the token at that position; with DSpark it predicts the token after its place. The head attends over the whole
block and over the target's states of the positions before. `observe` has turned these states into keys and values of
every layer. Later positions overwrite the keys and values of the block itself.

Given the tokens before the block, DFlash's drafts are independent of each other: each is drawn from the logits of its
own position. DFlash2 and DSpark correct these logits by the draft before. In both cases the drafts are a chain of
proposals like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from tailrace import kernels
from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates
from tailrace.drafting.block_head import BlockHead, Level
from tailrace.drafting.context import CachedPositions, locate_entries, split_positions
from tailrace.drafting.draft_sampler import DraftBatch, DraftSampler

ROWS = 256  # most rows of logits at a time


class BlockDrafter(Drafter):
    """Drafter of a whole block in one pass: at most block_size − 1 drafts, or block_size of a head that predicts a
    draft from the known token's place too.

    A sequence gets no drafts if its last computed position was not observed, or if the cache has no room for the block.

    Args:
        num_blocks, block_size: of its cache; block_size a multiple of 16. (The head's own block_size is the number of
            tokens that it fills in.)

    Raises:
        ValueError: num_blocks or block_size is out of range.
    """

    draws = True

    def __init__(self, head: BlockHead, draft_sampler: DraftSampler, num_blocks: int, block_size: int) -> None:
        self.head, self.draft_sampler = head, draft_sampler
        self.captures = head.captures
        self.context = CachedPositions(num_blocks, block_size)
        self.caches = [level.layer.make_cache(num_blocks, block_size) for level in head.levels]
        self.cache_bytes = num_blocks * block_size * head.position_bytes

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        length, most = self.head.block_size, self.head.block_size - self.head.first
        requests = [replace(request, count=min(request.count, most)) for request in requests]
        held = [self.context.reach(request.slot, request.tokens) for request in requests]
        unfinished = [i for i, n in enumerate(held) if n and self.context.pages.grow(requests[i].slot, n + length)]
        with self.draft_sampler.start(requests) as draft_batch:
            for group in group_by_rows(unfinished, [request.count for request in requests]):
                normed = self._compute_places([requests[i] for i in group], [held[i] for i in group])
                self._sample_group(draft_batch, requests, group, normed)
            return draft_batch.drafts()

    @torch.inference_mode()
    def observe(self, seen: TargetStates) -> None:
        for group in split_positions(self.context.enter(seen)):
            rows, batch = self.context.lay_out(group)
            features = self.head.project_states(seen.hidden[rows])
            rope = self.head.rotary(batch.positions)
            for level, cache in zip(self.head.levels, self.caches, strict=True):
                kernels.store_kv(cache, *level.layer.keys_values(features, rope), batch.slot_mapping)

    def remove(self, slot: int) -> None:
        self.context.remove(slot)

    # ---- inside

    def _sample_group(
        self, draft_batch: DraftBatch, requests: Sequence[DraftRequest], group: list[int], normed: torch.Tensor
    ) -> None:
        """Sample the drafts of some of the requests, place after place. normed: see `_compute_places`."""
        logits, states = self._start_places(normed, len(group))
        starts = dict(zip(group, accumulate((requests[i].count for i in group), initial=0), strict=False))
        while group:
            rows = [starts[i] + len(draft_batch.tokens[i]) for i in group]
            previous = torch.tensor([(draft_batch.tokens[i] or requests[i].tokens)[-1] for i in group])
            place, states, scores = self._correct_place(logits[rows], normed[rows], previous, states)
            on = draft_batch.sample(place, group, scores)
            states = None if states is None else states[[group.index(i) for i in on]]
            group = on

    @torch.inference_mode()
    def _start_places(self, normed: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the logits of all places, not corrected yet, and the correction's states of `count` blocks."""
        correction = self.head.correction
        return self.head.logits(normed), None if correction is None else correction.start(normed[:count])

    @torch.inference_mode()
    def _correct_place(
        self, logits: torch.Tensor, normed: torch.Tensor, previous: torch.Tensor, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[float] | None]:
        """Return the logits of one place of each block, the next states, and the scores, if the head has any and they
        are read. previous: the tokens before the places."""
        head, scores = self.head, None
        if head.confidence is not None and self.draft_sampler.scored:
            scores = head.confidence(normed, previous)
        if head.correction is not None and states is not None:
            logits, states = head.correction.apply(logits, normed, previous, states)
        return logits, states, scores

    @torch.inference_mode()
    def _compute_places(self, requests: Sequence[DraftRequest], held: Sequence[int]) -> torch.Tensor:
        """Compute the output head's input at all wanted places, request after request: [sum of counts, H].

        held: number of cached entries before each block.
        """
        head, length = self.head, self.head.block_size
        inside = torch.arange(length)
        token_ids = torch.full((len(requests), length), head.mask)
        token_ids[:, 0] = torch.tensor([request.tokens[-1] for request in requests])
        positions = torch.tensor([[len(request.tokens) - 1] for request in requests]) + inside
        known = torch.tensor(held)
        tables = self.context.pages.make_block_tables([request.slot for request in requests])
        places = locate_entries(tables, known[:, None] + inside, self.context.pages.block_size).flatten()
        rope = head.rotary(positions.flatten())
        stream = head.embed(token_ids.flatten())
        for level, cache in zip(head.levels, self.caches, strict=True):
            x, computed = level.prepare(stream)
            kernels.store_kv(cache, *level.layer.keys_values(x, rope), places)
            mixed = attend_blocks(level, level.layer.compute_query(x, rope), cache, tables, known + length)
            stream = level.finish(stream, mixed, computed)
        blocks = stream.unflatten(0, (len(requests), length))
        wanted = [b[head.first : head.first + r.count] for b, r in zip(blocks, requests, strict=True)]
        return head.norm(torch.cat(wanted))


def attend_blocks(
    level: Level, query: torch.Tensor, cache: kernels.KVCache, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Compute the attention of n blocks' tokens, [n · block, Hq, D], over the positions before them and over the block.

    The kernel is causal. To let a token see the whole block, it is passed as a sequence of its own that ends where the
    block does.
    """
    block = len(query) // len(lengths)
    each = block if level.causal else 1
    starts = torch.arange(0, len(query) + 1, each, dtype=torch.int32)
    lengths = lengths.to(torch.int32).repeat_interleave(block // each)
    tables = tables.repeat_interleave(block // each, 0)
    return kernels.paged_attention(query, cache, tables, starts, lengths, scale=level.layer.scale, window=level.window)


def group_by_rows(unfinished: Sequence[int], counts: Sequence[int]) -> Iterator[list[int]]:
    """Split `unfinished` into groups that have at most ROWS rows together."""
    group: list[int] = []
    rows = 0
    for i in unfinished:
        if group and rows + counts[i] > ROWS:
            yield group
            group, rows = [], 0
        group.append(i)
        rows += counts[i]
    if group:
        yield group
