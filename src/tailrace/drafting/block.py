"""Drafts of a whole block in one pass (drafting/block_head.py; DFlash, arXiv 2602.06036).

A block is the last token, whose state the target has not computed yet, and masks after it. The head's output at a mask
predicts the token at that position. The head attends over the whole block and over the target's states of the positions
before. `observe` has turned these states into keys and values of every layer. Later positions overwrite the keys and
values of the block itself.

Given the tokens before the block, its drafts are independent of each other: each is drawn from the logits of its own
position. So they are a chain of proposals like any other, in which no proposal depends on the earlier ones.
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
from tailrace.drafting.draft_sampler import DraftSampler

ROWS = 256  # most rows of logits at a time


class BlockDrafter(Drafter):
    """Drafter of a whole block in one pass: at most block_size − 1 drafts.

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
        length = self.head.block_size
        requests = [replace(request, count=min(request.count, length - 1)) for request in requests]
        held = [self.context.reach(request.slot, request.tokens) for request in requests]
        unfinished = [i for i, n in enumerate(held) if n and self.context.pages.grow(requests[i].slot, n + length)]
        with self.draft_sampler.start(requests) as draft_batch:
            for group in group_by_rows(unfinished, [request.count for request in requests]):
                logits = self._compute_mask_logits([requests[i] for i in group], [held[i] for i in group])
                starts = dict(zip(group, accumulate((requests[i].count for i in group), initial=0), strict=False))
                while group:
                    group = draft_batch.sample(logits[[starts[i] + len(draft_batch.tokens[i]) for i in group]], group)
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

    @torch.inference_mode()
    def _compute_mask_logits(self, requests: Sequence[DraftRequest], held: Sequence[int]) -> torch.Tensor:
        """Compute the logits of all wanted mask tokens, request after request: [sum of counts, V].

        held: number of cached entries before each block.
        """
        length = self.head.block_size
        inside = torch.arange(length)
        token_ids = torch.full((len(requests), length), self.head.mask)
        token_ids[:, 0] = torch.tensor([request.tokens[-1] for request in requests])
        positions = torch.tensor([[len(request.tokens) - 1] for request in requests]) + inside
        known = torch.tensor(held)
        tables = self.context.pages.make_block_tables([request.slot for request in requests])
        places = locate_entries(tables, known[:, None] + inside, self.context.pages.block_size).flatten()
        rope = self.head.rotary(positions.flatten())
        stream = self.head.embed(token_ids.flatten())
        for level, cache in zip(self.head.levels, self.caches, strict=True):
            layer, x = level.layer, level.norm(stream)
            kernels.store_kv(cache, *layer.keys_values(x, rope), places)
            stream = layer.compute_output(
                stream, attend_blocks(level, layer.compute_query(x, rope), cache, tables, known + length)
            )
        blocks = stream.unflatten(0, (len(requests), length))
        return self.head.logits(
            torch.cat([b[1 : 1 + request.count] for b, request in zip(blocks, requests, strict=True)])
        )


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
