"""Drafts from a head that continues the target's own hidden states: an EAGLE head (drafting/eagle_heads.py), or the MTP
head that a model ships with (drafting/mtp_head.py).

Entry j of the head's cache is made from the target's state at position j and the token at j + 1. The head's output
there predicts the token at j + 2. So the first draft comes from the last position that the target has computed and the
token drawn there. Each further draft uses the head's own output instead of the target's state. Drafts are chains: the
published trees choose among chains.

`observe` only keeps entries: with one layer, nothing else of a past entry is read again. The last entry is computed
again where drafting begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates
from tailrace.drafting.context import CachedPositions, split_positions
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.runners.base import Batch
from tailrace.runners.flat_batch import lay_out


class ChainHead(Protocol):
    """The interface of heads. States are [n, H].

    A pass has n entries. Its `token_ids` are the tokens after the entries' positions, and its tables and `kv_len` count
    entries.

    - captures: the target's layers whose outputs make a state.
    - position_bytes: bytes of cache per entry.
    """

    captures: tuple[int, ...]

    @property
    def position_bytes(self) -> int: ...

    def make_cache(self, num_blocks: int, block_size: int) -> Any:
        """Return a cache for the entries."""
        ...

    def state(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """Turn the target's captured outputs [n, C·Ht] into states."""
        ...

    def keep(self, cache: Any, batch: Batch, states: torch.Tensor) -> None:
        """Store the keys and values of a pass."""
        ...

    def step(self, cache: Any, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Do as `keep`, for one entry of each sequence. Return the states for the next entries, and logits [n, V]: −inf
        for tokens that the head does not know."""
        ...


class ChainDrafter(Drafter):
    """Drafter with a head whose drafts follow each other.

    A sequence gets no drafts if its last computed position was not observed. It gets at most one if the cache has no
    room for more.

    Args:
        head: of an EAGLE checkpoint, or the model's own MTP head.
        num_blocks, block_size: of its cache; block_size a multiple of 16.

    Raises:
        ValueError: num_blocks or block_size is out of range.
    """

    draws = True

    def __init__(self, head: ChainHead, draft_sampler: DraftSampler, num_blocks: int, block_size: int) -> None:
        self.head, self.draft_sampler = head, draft_sampler
        self.captures = head.captures
        self.context = CachedPositions(num_blocks, block_size)
        self.cache = head.make_cache(num_blocks, block_size)
        self.cache_bytes = num_blocks * block_size * head.position_bytes
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
                batch = lay_out([[last] for last in lasts], index, tables[unfinished], self.context.pages.block_size)
                states, logits = self._step(replace(batch, positions=torch.tensor(positions)), states)
                on = draft_batch.sample(logits, unfinished)
                states, unfinished = states[[unfinished.index(i) for i in on]], on
            return draft_batch.drafts()

    @torch.inference_mode()
    def observe(self, seen: TargetStates) -> None:
        stretches = self.context.enter(seen)
        for group in split_positions(stretches):
            rows, batch = self.context.lay_out(group)
            self.head.keep(self.cache, batch, self.head.state(seen.hidden[rows]))
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
    def _step(self, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head.step(self.cache, batch, states)
