"""Copies of states at the ends of full blocks, so that a model with a state per sequence can start from a cached prefix
(decision 0125).

The runner's memory has `rows` entries for each slot, its ring (runners.base.StatefulRunner), and then one entry for
each snapshot. A snapshot is found by the hash of the block at whose end the state was (block_hash.py). The blocks of
the same prefix have the keys and values, so a prefix is reused up to the last snapshot within its published blocks. If
all places are taken, the snapshot that was used least recently gives way. One on the way of a prompt counts as unused
until it is used.

This module knows nothing of the memory itself. It lists the copies that are due before the next forward pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Row

from tailrace.engine.sequence import Sequence

Copies = list[tuple[int, int]]

LEAST = 64  # tokens of a prompt that are worth a snapshot, which costs a step of its own
TAIL = 8  # tokens at the end of a prompt that the next turn may lack: the opening of the answer, in most templates
EVERY_PROMPT = 1024  # tokens of a prompt after which there is a snapshot, for prompts that differ from there on
EVERY_OUTPUT = 64  # tokens of an output after which its snapshot is renewed


class StateSnapshots:
    """The places of snapshots, and the copies that are due.

    Args:
        slots, rows: of the rings. places: of snapshots; 0: none are made.
    """

    def __init__(self, block_size: int = 16, slots: int = 0, rows: int = 0, places: int = 0) -> None:
        self._block_size, self._rows, self._first = block_size, rows, slots * rows
        self._every_prompt, self._every_output = (
            max(1, tokens // block_size) * block_size for tokens in (EVERY_PROMPT, EVERY_OUTPUT)
        )
        self._free = list(reversed(range(places)))
        self._place_of: OrderedDict[bytes, int] = OrderedDict()  # by the hash of a block; the next to give way is first
        self._held: set[bytes] = set()  # snapshots that the plan of the next step may start from
        self._unshared: set[bytes] = set()  # of outputs: only the sequence that saved them has met them
        self._copies: Copies = []
        self.enabled = places > 0

    def count_usable(self, hashes: Row[bytes], blocks: int) -> int:
        """Return how many of a prefix's first `blocks` blocks a sequence may start from. The snapshot at their end
        stays until the copies of the next step are taken."""
        while blocks and hashes[blocks - 1] not in self._place_of:
            blocks -= 1
        if blocks:
            self._held.add(hashes[blocks - 1])
        return blocks

    def limit_chunk(self, sequence: Sequence, computed: int, tokens: int) -> int:
        """Return how many of these tokens the next pass computes, so that it ends where a snapshot is wanted."""
        if not self.enabled or tokens == 0 or len(sequence.pair) > 1:  # the last tokens of a pair come in one step
            return tokens
        cut = (computed // self._every_prompt + 1) * self._every_prompt
        end = self._find_prompt_end(sequence)
        if computed < end:
            cut = min(cut, end)
        return min(tokens, cut - computed) if cut < len(sequence.tokens) else tokens

    def save(self, sequence: Sequence, blocks: int) -> None:
        """Save the state at the end of the sequence's first `blocks` blocks, if it is wanted and still in the ring."""
        position = blocks * self._block_size
        if not self.enabled or not self._is_wanted(sequence, position) or not self._has_state(sequence, position):
            return
        digest = sequence.hashes[blocks - 1]
        if digest in self._place_of:
            self._share(digest)
            return
        if not self._free:
            self.forget(next((other for other in self._place_of if other not in self._held), None))
        if not self._free:
            return
        place = self._place_of[digest] = self._free.pop()
        self._copies.append((self._locate(sequence.slot, position), self._first + place))
        if position > sequence.num_prompt:
            self._replace_output(sequence, digest)
        elif position < self._find_prompt_end(sequence):  # the next turn starts behind it
            self._place_of.move_to_end(digest, last=False)

    def load(self, sequence: Sequence) -> None:
        """Let a sequence that starts from cached blocks continue from the snapshot at their end."""
        position = sequence.num_computed
        if not self.enabled or not position:
            return
        digest = sequence.hashes[position // self._block_size - 1]
        self._share(digest)
        sequence.state_start = position
        self._copies.append((self._first + self._place_of[digest], self._locate(sequence.slot, position)))

    def fork(self, source: int, target: int) -> None:
        """Copy the ring of a slot to another one."""
        self._copies += [(source * self._rows + row, target * self._rows + row) for row in range(self._rows)]

    def forget(self, digest: bytes | None) -> None:
        """Forget the snapshot at the end of a block that nobody can find any more, if there is one."""
        if digest is not None and (place := self._place_of.pop(digest, None)) is not None:
            self._free.append(place)
            self._unshared.discard(digest)

    def forget_all(self) -> None:
        """Forget all snapshots, and the copies that are due: nobody knows what the memory has."""
        for digest in [*self._place_of]:
            self.forget(digest)
        self.take_copies()

    def take_copies(self) -> Copies:
        """Return the copies (source, target) that are due, in the order in which they must be made, and forget them."""
        due, self._copies = self._copies, []
        self._held.clear()
        return due

    def _share(self, digest: bytes) -> None:
        """A further sequence has met a snapshot."""
        self._place_of.move_to_end(digest)
        self._unshared.discard(digest)

    def _replace_output(self, sequence: Sequence, digest: bytes) -> None:
        """Of an output only the last snapshot stays, and those that other sequences have met."""
        if (old := sequence.output_snapshot) in self._unshared and old not in self._held:
            self.forget(old)
        sequence.output_snapshot = digest
        self._unshared.add(digest)

    def _locate(self, slot: int, position: int) -> int:
        return slot * self._rows + position % self._rows

    def _find_prompt_end(self, sequence: Sequence) -> int:
        """Return the position near the end of the prompt that has a snapshot; 0: the prompt is too short."""
        end = max(0, sequence.num_prompt - TAIL) // self._block_size * self._block_size
        return end if end >= LEAST else 0

    def _is_wanted(self, sequence: Sequence, position: int) -> bool:
        if position > sequence.num_prompt:
            return position % self._every_output == 0
        return position == self._find_prompt_end(sequence) or position % self._every_prompt == 0

    def _has_state(self, sequence: Sequence, position: int) -> bool:
        return sequence.state_start <= position
