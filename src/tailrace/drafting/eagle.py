"""Drafts from an EAGLE head: one decoder layer that continues the target's own hidden states (drafting/eagle_heads.py).

Entry j of the head's cache is made of the target's state at position j and of the token at j + 1; what the layer puts
out there guesses the token at j + 2. So the first draft comes from the last position that the target has computed and
the token drawn there; each further one takes the layer's own output for the target's state. Drafts are chains: the
published trees choose among chains.

`observe` stores keys and values only: with one layer, nothing else of a past entry is ever looked at. The last entry is
made again where drafting begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tailrace import kernels
from tailrace.drafting.base import Draft, DraftRequest, TargetStates
from tailrace.drafting.context import CachedPositions, flat, place
from tailrace.drafting.eagle_heads import EagleHead
from tailrace.drafting.pick import Picker


class EagleDrafter:
    """See drafting.base.Drafter.

    A sequence gets no drafts where its last computed position was not seen, and one at most where the cache has no room
    for more.

    Args:
        head: see eagle_heads.load_head. num_blocks, block_size: of its cache; block_size a multiple of 16.

    Raises:
        ValueError: num_blocks or block_size is out of range.
    """

    draws = True

    def __init__(self, head: EagleHead, picker: Picker, num_blocks: int, block_size: int) -> None:
        self.head, self.layer, self.picker = head, head.layer, picker
        self.captures = head.captures
        self.context = CachedPositions(num_blocks, block_size)
        self.cache = head.layer.make_cache(num_blocks, block_size)
        # slot → the last position that was seen, and its state [1, H]
        self.states: dict[int, tuple[int, torch.Tensor]] = {}

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        held = [self._held(ask) for ask in asks]
        grown = [n > 0 and self.context.pages.grow(a.slot, n + a.count - 1) for a, n in zip(asks, held, strict=True)]
        asks = [ask if room else replace(ask, count=1) for ask, room in zip(asks, grown, strict=True)]
        tables = self.context.pages.tables([ask.slot for ask in asks])
        with self.picker.start(asks) as picks:
            going = [i for i, n in enumerate(held) if n]
            states = torch.cat([self.states[asks[i].slot][1] for i in going]) if going else torch.empty(0)
            while going:
                lasts = [(picks.tokens[i] or asks[i].tokens)[-1] for i in going]
                depths = [len(picks.tokens[i]) for i in going]
                index = [held[i] - 1 + depth for i, depth in zip(going, depths, strict=True)]
                positions = [len(asks[i].tokens) - 2 + depth for i, depth in zip(going, depths, strict=True)]
                states, logits = self._step(lasts, states, positions, index, tables[going])
                on = picks.take(logits, going)
                states, going = states[[going.index(i) for i in on]], on
            return picks.drafts()

    @torch.inference_mode()
    def observe(self, seen: TargetStates) -> None:
        stretches = self.context.enter(seen)
        for entries in flat(stretches):
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

    def _held(self, ask: DraftRequest) -> int:
        """How many entries the ask's drafts go on from; 0: they can't."""
        seen, _ = self.states.get(ask.slot, (-1, None))
        return self.context.reach(ask.slot, ask.tokens) if seen == len(ask.tokens) - 2 else 0

    @torch.inference_mode()
    def _step(
        self, tokens: list[int], states: torch.Tensor, positions: list[int], index: list[int], tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One entry for each of n sequences, at these indices of their pages: the layer's outputs [n, H], and logits
        [n, V]."""
        at = torch.tensor(index)
        entering, residual = self.head.enter(torch.tensor(tokens), states)
        rope = self.head.rotary(torch.tensor(positions))
        places = place(tables, at[:, None], self.context.pages.block_size).squeeze(1)
        kernels.store_kv(self.cache, *self.layer.keys_values(entering, rope), places)
        mixed = kernels.paged_attention(
            self.layer.query(entering, rope),
            self.cache,
            tables,
            torch.arange(len(at) + 1, dtype=torch.int32),
            (at + 1).to(torch.int32),
            scale=self.layer.scale,
        )
        out = self.layer.after(residual, mixed)
        return self.head.following(out), self.head.logits(out)
