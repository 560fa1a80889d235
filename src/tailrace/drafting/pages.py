"""The blocks of a drafter's own KV cache that belong to each slot. Slots share no blocks, unlike in the engine's cache
(engine/kv_cache.py): a block belongs to one slot or is free."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tailrace.runners.flat_batch import block_table


class Pages:
    """The cache's `num_blocks` blocks of `block_size` positions.

    - blocks: those of each slot, in the order of their positions.
    - free: those of no slot; the last one is taken next.

    Raises:
        ValueError: one of the two is not at least 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = list(reversed(range(num_blocks)))
        self.blocks: dict[int, list[int]] = {}

    def count_missing_blocks(self, slot: int, length: int) -> int:
        """Return how many more blocks the slot needs to hold `length` positions."""
        return max(0, -(-length // self.block_size) - len(self.blocks.get(slot, ())))

    def grow(self, slot: int, length: int) -> bool:
        """Make the slot's blocks hold `length` positions. If too few blocks are free, return False and change
        nothing."""
        count = self.count_missing_blocks(slot, length)
        if count > len(self.free):
            return False
        if count:
            self.blocks.setdefault(slot, []).extend(self.free.pop() for _ in range(count))
        return True

    def cut(self, slot: int, length: int) -> None:
        """Free the slot's blocks that have no position below `length`."""
        owned = self.blocks.get(slot, [])
        keep = -(-length // self.block_size)
        self.free += reversed(owned[keep:])
        del owned[keep:]

    def release(self, slot: int) -> None:
        """Free all blocks of the slot, if it has any."""
        self.cut(slot, 0)
        self.blocks.pop(slot, None)

    def make_block_tables(self, slots: Sequence[int]) -> torch.Tensor:
        """Return the slots' blocks in order, int32 [N, B], see `block_table`."""
        return block_table([self.blocks.get(slot, ()) for slot in slots])
