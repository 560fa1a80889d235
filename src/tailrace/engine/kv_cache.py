"""Which block of the KV cache belongs to which sequence: reference counts, prefix reuse by chained hash, copy-on-write,
truncation; and the block tables that a batch is built from.

A block without references is free. A free block whose contents are known by hash can be found until it is taken again,
least recently used first. A block is published under its hash once all its positions are computed. This module knows
nothing of the memory itself, which is the runner's.

Equal hashes mean equal prefixes computed with the same weights (block_hash.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from tailrace.engine.block_hash import block_hash, root_of
from tailrace.engine.sequence import Sequence
from tailrace.runners.block_pool import BlockPool

Copies = list[tuple[int, int]]


class BlockCache:
    """`num_blocks` blocks of `block_size` positions. `prefix_reuse` False never publishes a block.

    state_rows: where the model keeps a state per sequence (runners.base.StatefulRunner), entries of a slot's ring: a
    sequence that goes back further than they reach begins anew. No block is published there: a state is no block's.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_reuse: bool = True, state_rows: int = 0) -> None:
        self.num_blocks, self.block_size, self.state_rows = num_blocks, block_size, state_rows
        self.prefix_reuse = prefix_reuse and not state_rows
        self.pool = BlockPool(num_blocks)
        self.references = self.pool.references
        self.hash_of: dict[int, bytes] = {}
        self.by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to."""
        return self.pool.num_free

    @property
    def num_used(self) -> int:
        """Blocks that some sequence refers to."""
        return self.num_blocks - self.pool.num_free

    def blocks_for(self, length: int) -> int:
        """How many blocks hold `length` positions."""
        return -(-length // self.block_size)

    # ---- planning: reads only

    def match(self, sequence: Sequence) -> list[int]:
        """Published blocks that hold the longest prefix of the sequence; a token whose logits are wanted is never among
        it."""
        found: list[int] = []
        if not self.prefix_reuse:
            return found
        for place in range(sequence.reusable // self.block_size):  # none is hashed behind the first that is missing
            self._hash(sequence, place + 1)
            block = self.by_hash.get(sequence.hashes[place])
            if block is None:
                break
            found.append(block)
        return found

    def demand(self, sequence: Sequence, length: int) -> int:
        """Free blocks that `reserve(sequence, length)` would take."""
        return max(0, self.blocks_for(length) - len(sequence.blocks)) + self._must_copy(sequence)

    def yields(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that become free when all of these sequences let go of theirs, among them those that only they
        share."""
        held = Counter(block for sequence in sequences for block in sequence.blocks)
        return sum(self.references[block] == count for block, count in held.items())

    def own_block(self, sequence: Sequence) -> int | None:
        """The block that the sequence's next position lies in, if it is there and nobody else refers to it. `match` may
        find it, where the sequence has gone back to the middle of a published block."""
        at = sequence.num_computed // self.block_size
        if at < len(sequence.blocks) and self.references[sequence.blocks[at]] == 1:
            return sequence.blocks[at]
        return None

    # ---- changes

    def attach(self, sequence: Sequence, blocks: list[int]) -> None:
        """Start an empty sequence with matched blocks: their positions count as computed."""
        for block in blocks:
            self.pool.refer(block)
        sequence.blocks = list(blocks)
        sequence.num_computed = len(blocks) * self.block_size
        sequence.num_published = len(blocks)

    def reserve(self, sequence: Sequence, length: int) -> Copies:
        """Make the sequence's blocks cover `length` positions and its next write safe: a shared block is replaced by a
        copy (returned as (source, target), to be made before the write), a published one that will be written is
        withdrawn.

        Raises:
            MemoryError: not enough free blocks; see `demand`. Nothing is changed.
        """
        if self.demand(sequence, length) > self.num_free:
            raise MemoryError(f"{self.demand(sequence, length)} blocks wanted, {self.num_free} free")
        copies: Copies = []
        at = sequence.num_computed // self.block_size
        if self._must_copy(sequence):
            fresh = self._take()
            copies.append((sequence.blocks[at], fresh))
            self._release(sequence.blocks[at])
            sequence.blocks[at] = fresh
        elif at < len(sequence.blocks):
            self._withdraw(sequence.blocks[at])
        while len(sequence.blocks) < self.blocks_for(length):
            sequence.blocks.append(self._take())
        return copies

    def publish(self, sequence: Sequence) -> None:
        """Publish the blocks whose last position has been computed since."""
        full = sequence.num_computed // self.block_size
        if not self.prefix_reuse or full <= sequence.num_published:
            return
        self._hash(sequence, full)
        for place in range(sequence.num_published, full):
            block, digest = sequence.blocks[place], sequence.hashes[place]
            if digest not in self.by_hash and block not in self.hash_of:
                self.by_hash[digest] = block
                self.hash_of[block] = digest
        sequence.num_published = full

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget all positions from `length` on, to the token; all positions where no state is left of that length."""
        if self.state_rows and length < sequence.num_computed and sequence.state_end - length >= self.state_rows:
            length = 0
        keep = self.blocks_for(length)
        for block in reversed(sequence.blocks[keep:]):
            self._release(block)
        del sequence.blocks[keep:]
        full = length // self.block_size
        sequence.num_computed = min(sequence.num_computed, length)
        sequence.num_published = min(sequence.num_published, full)
        del sequence.hashes[full:]

    def fork(self, source: Sequence, target: Sequence) -> None:
        """Let the empty `target` share all blocks of `source`."""
        for block in source.blocks:
            self.pool.refer(block)
        target.blocks = list(source.blocks)
        target.num_computed, target.num_published = source.num_computed, source.num_published
        target.hashes, target.state_end = list(source.hashes), source.state_end

    def release(self, sequence: Sequence) -> None:
        """Let go of all blocks; the sequence is as if never computed."""
        for block in reversed(sequence.blocks):  # the end of a prefix is taken again before its start
            self._release(block)
        sequence.blocks = []
        sequence.num_computed = sequence.num_published = sequence.state_end = 0

    def check(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError unless the books balance. For tests."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            assert len(sequence.blocks) >= self.blocks_for(sequence.num_computed)
            for block in sequence.blocks:
                counts[block] += 1
        assert counts == self.references
        assert set(self.pool.free) == {block for block, count in enumerate(counts) if count == 0}
        assert {block: digest for digest, block in self.by_hash.items()} == self.hash_of

    # ---- inside

    def _hash(self, sequence: Sequence, blocks: int) -> None:
        """Makes the sequence keep the hashes of its first blocks, if it does not yet."""
        size, hashes = self.block_size, sequence.hashes
        while len(hashes) < blocks:
            at = len(hashes) * size
            parent = hashes[-1] if hashes else root_of(sequence.request.adapter)
            hashes.append(block_hash(parent, sequence.tokens[at : at + size]))

    def _must_copy(self, sequence: Sequence) -> bool:
        """The next position to be written lies in a block that others refer to."""
        at = sequence.num_computed // self.block_size
        return at < len(sequence.blocks) and self.references[sequence.blocks[at]] > 1

    def _take(self) -> int:
        block = self.pool.take()
        self._withdraw(block)
        return block

    def _release(self, block: int) -> None:
        self.pool.release(block, reusable=block in self.hash_of)

    def _withdraw(self, block: int) -> None:
        digest = self.hash_of.pop(block, None)
        if digest is not None:
            del self.by_hash[digest]


class BlockTables:
    """Block tables of all slots, [slots, blocks] int32, written when a sequence's blocks change, never rebuilt."""

    def __init__(self, num_slots: int, width: int) -> None:
        self.table = np.zeros((num_slots, width), dtype=np.int32)
        self.written = [0] * num_slots

    def clear(self, slot: int) -> None:
        """The slot has a new owner."""
        self.written[slot] = 0

    def cut(self, sequence: Sequence) -> None:
        """The sequence has released its last blocks."""
        self.written[sequence.slot] = min(self.written[sequence.slot], len(sequence.blocks))

    def write(self, sequence: Sequence, start: int | None = None) -> None:
        """Enter the sequence's blocks from index `start` on (None: those not entered yet)."""
        slot = sequence.slot
        first = self.written[slot] if start is None else min(start, self.written[slot])
        if first < len(sequence.blocks):
            self.table[slot, first : len(sequence.blocks)] = sequence.blocks[first:]
        self.written[slot] = len(sequence.blocks)
