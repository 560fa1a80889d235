"""Where a drafter's own keys and values lie: blocks by slot, and a pass over them as a runner's Batch. Knows nothing of tokens' meaning.

Unlike the engine's cache (engine/kv_cache.py) nothing is shared: a block belongs to one slot or to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tailrace.runners.base import Batch


class Pages:
    """`num_blocks` blocks of `block_size` positions.

    Raises:
        ValueError: one of the two is not at least 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = list(range(num_blocks))[::-1]  # the last one is taken next
        self.blocks: dict[int, list[int]] = {}

    def lacking(self, slot: int, length: int) -> int:
        """Blocks that the slot must get to hold `length` positions."""
        return max(0, -(-length // self.block_size) - len(self.blocks.get(slot, ())))

    def grow(self, slot: int, length: int) -> bool:
        """Make the slot's blocks hold `length` positions. False: there is no room, and nothing has changed."""
        count = self.lacking(slot, length)
        if count > len(self.free):
            return False
        if count:
            self.blocks.setdefault(slot, []).extend(self.free.pop() for _ in range(count))
        return True

    def cut(self, slot: int, length: int) -> None:
        """Take back the slot's blocks that no position below `length` lies in."""
        owned = self.blocks.get(slot, [])
        keep = -(-length // self.block_size)
        self.free += owned[keep:][::-1]
        del owned[keep:]

    def release(self, slot: int) -> None:
        """Take back all blocks of the slot, if it has any."""
        self.free += self.blocks.pop(slot, [])[::-1]

    def tables(self, slots: Sequence[int]) -> torch.Tensor:
        """The slots' blocks in order, int32 [N, B], see `table`."""
        return table([self.blocks.get(slot, ()) for slot in slots])


def table(blocks: Sequence[Sequence[int]]) -> torch.Tensor:
    """Lists of blocks as int32 [N, B], padded with 0; B is the longest list's length, at least 1."""
    out = np.zeros((len(blocks), max(map(len, blocks), default=1) or 1), dtype=np.int32)
    for row, owned in zip(out, blocks, strict=True):
        row[: len(owned)] = owned
    return torch.from_numpy(out)


def lay_out(
    tokens: Sequence[Sequence[int]],
    first: Sequence[int],
    tables: torch.Tensor,
    block_size: int,
    wanted: Sequence[int] | None = None,
) -> Batch:
    """One pass over N sequences as a flat bag.

    Args:
        tokens: what each feeds, ≥ 1. first: the position of its first one. tables: int32 [N, B], rows cover all of its positions.
        wanted: the sequences whose last token's logits are asked for, ascending; None: all.
    """
    counts = np.array([len(fed) for fed in tokens])
    starts = np.concatenate([[0], counts.cumsum()])
    ends = np.array(first) + counts
    owner = np.repeat(np.arange(len(tokens)), counts)
    positions = np.arange(starts[-1]) - np.repeat(starts[1:] - ends, counts)
    blocks = tables.numpy()[owner, positions // block_size].astype(np.int64)
    lasts = starts[1:] - 1
    return Batch(
        token_ids=torch.tensor([token for fed in tokens for token in fed], dtype=torch.int64),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(blocks * block_size + positions % block_size),
        query_start=torch.from_numpy(starts.astype(np.int32)),
        kv_len=torch.from_numpy(ends.astype(np.int32)),
        block_tables=tables,
        wanted=torch.from_numpy(lasts if wanted is None else lasts[np.array(wanted, dtype=np.int64)]),
    )
