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

from abc import abstractmethod
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


class StateChain(Drafter):
    """Drafter whose drafts follow each other: each step takes a token and a state, and gives the next ones.

    - moves: by how many positions the next step is further on.
    - states: slot → the last observed position, and its state [1, H].
    """

    draws = True
    moves = 1

    def __init__(self, draft_sampler: DraftSampler, block_size: int) -> None:
        self.draft_sampler, self.block_size = draft_sampler, block_size
        self.states: dict[int, tuple[int, torch.Tensor]] = {}

    @abstractmethod
    def plan(self, requests: Sequence[DraftRequest]) -> tuple[Sequence[DraftRequest], list[int], torch.Tensor]:
        """Return the requests with as many drafts as have room; how many entries each one's cache holds, 0: it gets no
        drafts; and its blocks, int32 [N, B]."""

    @abstractmethod
    def step(self, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next states [n, H] and logits [n, V] of one entry of each sequence."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        requests, held, tables = self.plan(requests)
        with self.draft_sampler.start(requests) as draft_batch:
            unfinished = [i for i, n in enumerate(held) if n]
            states = torch.cat([self.states[requests[i].slot][1] for i in unfinished]) if unfinished else torch.empty(0)
            while unfinished:
                lasts = [(draft_batch.tokens[i] or requests[i].tokens)[-1] for i in unfinished]
                ahead = [self.moves * len(draft_batch.tokens[i]) for i in unfinished]
                index = [held[i] - 1 + more for i, more in zip(unfinished, ahead, strict=True)]
                places = [len(requests[i].tokens) - 1 - self.moves for i in unfinished]
                positions = torch.tensor([place + more for place, more in zip(places, ahead, strict=True)])
                batch = lay_out([[last] for last in lasts], index, tables[unfinished], self.block_size)
                with torch.inference_mode():
                    states, logits = self.step(replace(batch, positions=positions), states)
                on = draft_batch.sample(logits, unfinished)
                states, unfinished = states[[unfinished.index(i) for i in on]], on
            return draft_batch.drafts()

    def remove(self, slot: int) -> None:
        self.states.pop(slot, None)

    def has_state(self, request: DraftRequest) -> bool:
        """Return whether the state of the request's last computed position is known."""
        return self.states.get(request.slot, (-1, None))[0] == len(request.tokens) - 2


class ChainDrafter(StateChain):
    """Drafter with a head that has a cache of its own.

    A sequence gets no drafts if its last computed position was not observed. It gets at most one if the cache has no
    room for more.

    Args:
        head: of an EAGLE checkpoint, or the model's own MTP head.
        num_blocks, block_size: of its cache; block_size a multiple of 16.

    Raises:
        ValueError: num_blocks or block_size is out of range.
    """

    def __init__(self, head: ChainHead, draft_sampler: DraftSampler, num_blocks: int, block_size: int) -> None:
        super().__init__(draft_sampler, block_size)
        self.head, self.captures = head, head.captures
        self.context = CachedPositions(num_blocks, block_size)
        self.cache = head.make_cache(num_blocks, block_size)
        self.cache_bytes = num_blocks * block_size * head.position_bytes

    def plan(self, requests: Sequence[DraftRequest]) -> tuple[Sequence[DraftRequest], list[int], torch.Tensor]:
        held = [self.context.reach(a.slot, a.tokens) if self.has_state(a) else 0 for a in requests]
        grown = [
            n > 0 and self.context.pages.grow(a.slot, n + a.count - 1) for a, n in zip(requests, held, strict=True)
        ]
        requests = [
            request if grew else replace(request, count=1) for request, grew in zip(requests, grown, strict=True)
        ]
        return requests, held, self.context.pages.make_block_tables([request.slot for request in requests])

    def step(self, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head.step(self.cache, batch, states)

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
        super().remove(slot)
        self.context.remove(slot)
