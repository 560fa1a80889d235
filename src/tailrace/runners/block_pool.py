"""Who refers to which block of a KV cache. The engine's cache and the drafters' caches take their blocks here."""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """`num_blocks` blocks with a reference count each. A block without references is free.

    free: the free blocks, the one that is taken next first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks without references."""
        return len(self.free)

    def take(self) -> int:
        """A free block, which has one reference from here on.

        Raises:
            KeyError: no block is free.
        """
        block, _ = self.free.popitem(last=False)
        self.references[block] = 1
        return block

    def refer(self, block: int) -> None:
        """One reference more, also to a free block."""
        if self.references[block] == 0:
            del self.free[block]
        self.references[block] += 1

    def release(self, block: int, reusable: bool = False) -> None:
        """One reference less. reusable: once the block is free, its contents are of use: it is taken last, otherwise
        next."""
        self.references[block] -= 1
        if self.references[block] == 0:
            self.free[block] = None
            if not reusable:
                self.free.move_to_end(block, last=False)
