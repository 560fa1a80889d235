"""Which blocks of a drafter's own KV cache belong to which slot. Nothing is shared, unlike in the engine's cache
(engine/kv_cache.py): a block belongs to one slot or is free."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tailrace.runners.block_pool import BlockPool
from tailrace.runners.flat_batch import block_table


class Pages:
    """`num_blocks` blocks of `block_size` positions. blocks: of each slot, in the order of its positions.

    Raises:
        ValueError: one of the two is not at least 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.block_size, self.pool = block_size, BlockPool(num_blocks)
        self.blocks: dict[int, list[int]] = {}

    def lacking(self, slot: int, length: int) -> int:
        """Blocks that the slot must get to hold `length` positions."""
        return max(0, -(-length // self.block_size) - len(self.blocks.get(slot, ())))

    def grow(self, slot: int, length: int) -> bool:
        """Make the slot's blocks hold `length` positions. False: too few blocks are free, and nothing has changed."""
        count = self.lacking(slot, length)
        if count > self.pool.num_free:
            return False
        if count:
            self.blocks.setdefault(slot, []).extend(self.pool.take() for _ in range(count))
        return True

    def cut(self, slot: int, length: int) -> None:
        """Take back the slot's blocks that hold no position below `length`."""
        owned = self.blocks.get(slot, [])
        keep = -(-length // self.block_size)
        for block in reversed(owned[keep:]):
            self.pool.release(block)
        del owned[keep:]

    def release(self, slot: int) -> None:
        """Take back all blocks of the slot, if it has any."""
        self.cut(slot, 0)
        self.blocks.pop(slot, None)

    def tables(self, slots: Sequence[int]) -> torch.Tensor:
        """The slots' blocks in order, int32 [N, B], see `block_table`."""
        return block_table([self.blocks.get(slot, ()) for slot in slots])
