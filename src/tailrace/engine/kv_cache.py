"""Assigns the blocks of the KV cache to sequences: reference counts, prefix reuse by chained hash, copy-on-write,
truncation. It also keeps the block tables that a batch is built from.

A block without references is free. A free block whose contents are known by hash can be found until it is taken again,
least recently used first. A block is published under its hash once all its positions are computed. This module knows
nothing of the memory itself, which is the runner's.

Equal hashes mean equal prefixes computed with the same weights, and equal salts (block_hash.py).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Set

import numpy as np

from tailrace.engine.block_hash import block_hash, root_of
from tailrace.engine.sequence import Sequence
from tailrace.engine.state_snapshots import StateSnapshots

Copies = list[tuple[int, int]]


class BlockCache:
    """`num_blocks` blocks of `block_size` positions. `prefix_reuse` False never publishes a block.

    state_rows: entries of a slot's ring of states, for a model with a state per sequence (runners.base.StatefulRunner).
    A sequence that goes back beyond these states starts again. snapshots: of states, from which such a model's prefixes
    are continued; None: they are never reused.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_reuse: bool = True,
        state_rows: int = 0,
        snapshots: StateSnapshots | None = None,
    ) -> None:
        self.num_blocks, self.block_size, self.state_rows = num_blocks, block_size, state_rows
        self.snapshots = StateSnapshots() if snapshots is None else snapshots
        self.prefix_reuse = prefix_reuse and (not state_rows or self.snapshots.enabled)
        self.references = [0] * num_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # the next one to take comes first
        self.hash_of: dict[int, bytes] = {}
        self.by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks without references."""
        return len(self.free)

    @property
    def num_used(self) -> int:
        """Number of blocks with references."""
        return self.num_blocks - len(self.free)

    def blocks_for(self, length: int) -> int:
        """Return how many blocks hold `length` positions."""
        return -(-length // self.block_size)

    # ---- planning: reads only

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """Return the published blocks that hold the longest prefix of the sequence. Tokens whose logits are wanted are
        never part of it."""
        found: list[int] = []
        if not self.prefix_reuse:
            return found
        for place in range(sequence.reusable // self.block_size):  # no later block is hashed once one is missing
            self._hash_blocks(sequence, place + 1)
            block = self.by_hash.get(sequence.hashes[place])
            if block is None:
                break
            found.append(block)
        return found[: self.snapshots.count_usable(sequence.hashes, len(found))] if self.state_rows else found

    def count_uncached(self, sequence: Sequence) -> int:
        """Return the number of tokens that must be computed, without those that the cache holds already."""
        held = 0 if sequence.slot >= 0 else len(self.match_prefix(sequence)) * self.block_size
        return sequence.num_uncomputed - held

    def count_needed_blocks(self, sequence: Sequence, length: int) -> int:
        """Return the number of free blocks that `reserve(sequence, length)` would take."""
        return max(0, self.blocks_for(length) - len(sequence.blocks)) + self._must_copy(sequence)

    def count_freed_blocks(self, sequences: Iterable[Sequence], kept: Set[int] = frozenset()) -> int:
        """Return the number of blocks that become free when all of these sequences release theirs. Blocks that only
        these sequences share are included. kept: blocks that do not become free."""
        held = Counter(block for sequence in sequences for block in sequence.blocks)
        return sum(self.references[block] == count and block not in kept for block, count in held.items())

    def own_block(self, sequence: Sequence) -> int | None:
        """Return the block of the sequence's next position, if it exists and only this sequence refers to it.

        `match_prefix` may find it if the sequence has gone back to the middle of a published block.
        """
        at = sequence.num_computed // self.block_size
        if at < len(sequence.blocks) and self.references[sequence.blocks[at]] == 1:
            return sequence.blocks[at]
        return None

    def select_changing(self, work: Iterable[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Return the entries (sequence, tokens) whose `reserve` changes something."""
        size, references, published = self.block_size, self.references, self.hash_of
        changing: list[tuple[Sequence, int]] = []
        for entry in work:
            sequence, tokens = entry
            blocks, computed = sequence.blocks, sequence.num_computed
            at = computed // size
            if computed + tokens > len(blocks) * size or references[blocks[at]] > 1 or blocks[at] in published:
                changing.append(entry)
        return changing

    # ---- changes

    def attach(self, sequence: Sequence, blocks: list[int]) -> None:
        """Start an empty sequence with matched blocks: their positions count as computed."""
        for block in blocks:
            self._refer(block)
        sequence.blocks = list(blocks)
        sequence.num_computed = len(blocks) * self.block_size
        sequence.num_published = len(blocks)

    def reserve(self, sequence: Sequence, length: int) -> Copies:
        """Make the sequence's blocks cover `length` positions and its next write safe.

        A shared block is replaced by a copy, returned as (source, target). The copy must be made before the write. A
        published block that will be written is withdrawn.

        Raises:
            MemoryError: too few blocks are free; see `count_needed_blocks`. Nothing is changed.
        """
        if self.count_needed_blocks(sequence, length) > self.num_free:
            raise MemoryError(f"{self.count_needed_blocks(sequence, length)} blocks wanted, {self.num_free} free")
        copies: Copies = []
        at = sequence.num_computed // self.block_size
        if self._must_copy(sequence):
            fresh = self._take_block()
            copies.append((sequence.blocks[at], fresh))
            self._release_block(sequence.blocks[at])
            sequence.blocks[at] = fresh
        elif at < len(sequence.blocks):
            self._unpublish_block(sequence.blocks[at])
        while len(sequence.blocks) < self.blocks_for(length):
            sequence.blocks.append(self._take_block())
        return copies

    def note_pass(self, sequence: Sequence, end: int) -> None:
        """Note that a pass computes the sequence's tokens up to `end`, drafts included, whether they will count or not.
        It writes over the oldest states of the ring."""
        if self.state_rows:
            sequence.state_start = max(sequence.state_start, end - self.state_rows + 1)

    def publish_blocks(self, sequence: Sequence) -> None:
        """Publish the blocks whose last position is now computed."""
        full = sequence.num_computed // self.block_size
        if not self.prefix_reuse or full <= sequence.num_published:
            return
        self._hash_blocks(sequence, full)
        for place in range(sequence.num_published, full):
            block, digest = sequence.blocks[place], sequence.hashes[place]
            if digest not in self.by_hash and block not in self.hash_of:
                self.by_hash[digest] = block
                self.hash_of[block] = digest
            if self.state_rows:
                self.snapshots.save(sequence, place + 1)
        sequence.num_published = full

    def truncate_sequence(self, sequence: Sequence, length: int) -> None:
        """Forget all positions from `length` on; forget all positions if no state of that length is left."""
        if min(length, sequence.num_computed) < sequence.state_start:
            length = sequence.state_start = 0
        keep = self.blocks_for(length)
        for block in reversed(sequence.blocks[keep:]):
            self._release_block(block)
        del sequence.blocks[keep:]
        full = length // self.block_size
        sequence.num_computed = min(sequence.num_computed, length)
        sequence.num_published = min(sequence.num_published, full)
        del sequence.hashes[full:]

    def fork(self, source: Sequence, target: Sequence) -> None:
        """Let the empty `target` share all blocks of `source`."""
        for block in source.blocks:
            self._refer(block)
        target.blocks = list(source.blocks)
        target.num_computed, target.num_published = source.num_computed, source.num_published
        target.hashes, target.state_start = list(source.hashes), source.state_start

    def release(self, sequence: Sequence) -> None:
        """Release all blocks. The sequence is then as if never computed."""
        for block in reversed(sequence.blocks):  # the end of a prefix is taken again before its start
            self._release_block(block)
        sequence.blocks = []
        sequence.num_computed = sequence.num_published = sequence.state_start = 0

    def check(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError unless all counts agree. For tests."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            assert len(sequence.blocks) >= self.blocks_for(sequence.num_computed)
            for block in sequence.blocks:
                counts[block] += 1
        assert counts == self.references
        assert set(self.free) == {block for block, count in enumerate(counts) if count == 0}
        assert {block: digest for digest, block in self.by_hash.items()} == self.hash_of

    # ---- inside

    def _hash_blocks(self, sequence: Sequence, blocks: int) -> None:
        """Extend the sequence's hashes to its first `blocks` blocks."""
        size, hashes, request = self.block_size, sequence.hashes, sequence.request
        while len(hashes) < blocks:
            at = len(hashes) * size
            parent = hashes[-1] if hashes else root_of(request.adapter, request.owner.cache_salt)
            hashes.append(block_hash(parent, sequence.tokens[at : at + size]))

    def _must_copy(self, sequence: Sequence) -> bool:
        """Return whether the next position to be written lies in a block that others refer to."""
        at = sequence.num_computed // self.block_size
        return at < len(sequence.blocks) and self.references[sequence.blocks[at]] > 1

    def _take_block(self) -> int:
        block, _ = self.free.popitem(last=False)
        self.references[block] = 1
        self._unpublish_block(block)
        return block

    def _refer(self, block: int) -> None:
        if self.references[block] == 0:
            del self.free[block]
        self.references[block] += 1

    def _release_block(self, block: int) -> None:
        """Remove one reference. A free block that is published is taken last, any other free block next."""
        self.references[block] -= 1
        if self.references[block] == 0:
            self.free[block] = None
            if block not in self.hash_of:
                self.free.move_to_end(block, last=False)

    def _unpublish_block(self, block: int) -> None:
        digest = self.hash_of.pop(block, None)
        if digest is not None:
            del self.by_hash[digest]
            self.snapshots.forget(digest)


class BlockTables:
    """Block tables of all slots, [slots, blocks] int32, written when a sequence's blocks change, never rebuilt."""

    def __init__(self, num_slots: int, width: int) -> None:
        self.table = np.zeros((num_slots, width), dtype=np.int32)
        self.written = [0] * num_slots

    def clear(self, slot: int) -> None:
        """Forget the entries of a slot, which has a new owner."""
        self.written[slot] = 0

    def cut(self, sequence: Sequence) -> None:
        """Forget the sequence's last entries, whose blocks it has released."""
        self.written[sequence.slot] = min(self.written[sequence.slot], len(sequence.blocks))

    def write(self, sequence: Sequence, start: int | None = None) -> None:
        """Enter the sequence's blocks from index `start` on (None: those not entered yet)."""
        slot = sequence.slot
        first = self.written[slot] if start is None else min(start, self.written[slot])
        if first < len(sequence.blocks):
            self.table[slot, first : len(sequence.blocks)] = sequence.blocks[first:]
        self.written[slot] = len(sequence.blocks)
