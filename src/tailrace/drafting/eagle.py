"""Drafts from an EAGLE head: one decoder layer that continues the target's own hidden states (drafting/eagle_heads.py).

Entry j of the head's cache is made from the target's state at position j and the token at j + 1. The layer's output
there predicts the token at j + 2. So the first draft comes from the last position that the target has computed and the
token drawn there. Each further draft uses the layer's own output instead of the target's state. Drafts are chains: the
published trees choose among chains.

`observe` stores keys and values only: with one layer, nothing else of a past entry is read again. The last entry is
computed again where drafting begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tailrace import kernels
from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates
from tailrace.drafting.context import CachedPositions, flatten_positions, locate_entries
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.drafting.eagle_heads import EagleHead


class EagleDrafter(Drafter):
    """Drafter with an EAGLE head.

    A sequence gets no drafts if its last computed position was not observed. It gets at most one if the cache has no
    room for more.

    Args:
        head: see eagle_heads.load_head.
        num_blocks, block_size: of its cache; block_size a multiple of 16.

    Raises:
        ValueError: num_blocks or block_size is out of range.
    """

    draws = True

    def __init__(self, head: EagleHead, draft_sampler: DraftSampler, num_blocks: int, block_size: int) -> None:
        self.head, self.layer, self.draft_sampler = head, head.layer, draft_sampler
        self.captures = head.captures
        self.context = CachedPositions(num_blocks, block_size)
        self.cache = head.layer.make_cache(num_blocks, block_size)
        self.cache_bytes = num_blocks * block_size * head.layer.position_bytes
        # slot → the last observed position, and its state [1, H]
        self.states: dict[int, tuple[int, torch.Tensor]] = {}

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        held = [self._count_held(request) for request in requests]
        grown = [
            n > 0 and self.context.pages.grow(a.slot, n + a.count - 1) for a, n in zip(requests, held, strict=True)
        ]
        requests = [
            request if grew else replace(request, count=1) for request, grew in zip(requests, grown, strict=True)
        ]
        tables = self.context.pages.make_block_tables([request.slot for request in requests])
        with self.draft_sampler.start(requests) as draft_batch:
            unfinished = [i for i, n in enumerate(held) if n]
            states = torch.cat([self.states[requests[i].slot][1] for i in unfinished]) if unfinished else torch.empty(0)
            while unfinished:
                lasts = [(draft_batch.tokens[i] or requests[i].tokens)[-1] for i in unfinished]
                depths = [len(draft_batch.tokens[i]) for i in unfinished]
                index = [held[i] - 1 + depth for i, depth in zip(unfinished, depths, strict=True)]
                positions = [len(requests[i].tokens) - 2 + depth for i, depth in zip(unfinished, depths, strict=True)]
                states, logits = self._feed_tokens(lasts, states, positions, index, tables[unfinished])
                on = draft_batch.sample(logits, unfinished)
                states, unfinished = states[[unfinished.index(i) for i in on]], on
            return draft_batch.drafts()

    @torch.inference_mode()
    def observe(self, seen: TargetStates) -> None:
        stretches = self.context.enter(seen)
        for entries in flatten_positions(stretches):
            state = self.head.state(seen.hidden[entries.rows])
            entering, _ = self.head.enter(entries.following, state)
            keys, values = self.layer.keys_values(entering, self.head.rotary(entries.positions))
            kernels.store_kv(self.cache, keys, values, entries.places)
        lasts = self.head.state(seen.hidden[[s.row + s.count - 1 for s in stretches]]) if stretches else ()
        for s, state in zip(stretches, lasts, strict=True):
            self.states[s.slot] = (s.first + s.count - 1, state[None])

    def remove(self, slot: int) -> None:
        self.context.remove(slot)
        self.states.pop(slot, None)

    # ---- inside

    def _count_held(self, request: DraftRequest) -> int:
        """Return how many entries precede the request's drafts; 0: no drafts are possible."""
        seen, _ = self.states.get(request.slot, (-1, None))
        return self.context.reach(request.slot, request.tokens) if seen == len(request.tokens) - 2 else 0

    @torch.inference_mode()
    def _feed_tokens(
        self, tokens: list[int], states: torch.Tensor, positions: list[int], index: list[int], tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute one entry for each of n sequences, at these indices of their pages.

        Returns the layer's outputs [n, H], and logits [n, V].
        """
        at = torch.tensor(index)
        entering, residual = self.head.enter(torch.tensor(tokens), states)
        rope = self.head.rotary(torch.tensor(positions))
        places = locate_entries(tables, at[:, None], self.context.pages.block_size).squeeze(1)
        kernels.store_kv(self.cache, *self.layer.keys_values(entering, rope), places)
        mixed = kernels.paged_attention(
            self.layer.compute_query(entering, rope),
            self.cache,
            tables,
            torch.arange(len(at) + 1, dtype=torch.int32),
            (at + 1).to(torch.int32),
            scale=self.layer.scale,
        )
        out = self.layer.compute_output(residual, mixed)
        return self.head.following(out), self.head.logits(out)
