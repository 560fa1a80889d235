"""The positions of each sequence that a head has in its own cache, and their places there. This module does no
arithmetic.

Positions that the target computed before the head could see them (a prefix from the cache) are missing. The others are
stored without gaps: the i-th known position is the i-th entry of the slot's pages. Keys have their true positions in
their rotation. So attention over the entries gives the same result as attention with the missing positions masked. (A
sliding window then counts entries.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from tailrace.drafting.base import TargetStates
from tailrace.drafting.pages import Pages
from tailrace.runners.base import Batch
from tailrace.runners.flat_batch import lay_out

CHUNK = 512  # rows entered at a time; limits the memory of a long prefill


@dataclass(frozen=True, slots=True)
class NewPositions:
    """New positions first … first + count − 1 of a slot's sequence.

    - row: the first position's row in TargetStates.hidden.
    - begin: the first position's index among the slot's entries.
    - following: the token after each position.
    """

    slot: int
    first: int
    count: int
    row: int
    begin: int
    following: Sequence[int]

    def part(self, start: int, count: int) -> NewPositions:
        """Return `count` of the positions, from the start-th on."""
        return NewPositions(
            self.slot,
            self.first + start,
            count,
            self.row + start,
            self.begin + start,
            self.following[start : start + count],
        )


def split_positions(stretches: Sequence[NewPositions], size: int = CHUNK) -> Iterator[list[NewPositions]]:
    """Yield all positions in groups of at most `size`."""
    group: list[NewPositions] = []
    room = size
    for stretch in stretches:
        start = 0
        while start < stretch.count:
            count = min(room, stretch.count - start)
            group.append(stretch.part(start, count))
            start, room = start + count, room - count
            if not room:
                yield group
                group, room = [], size
    if group:
        yield group


class CachedPositions:
    """The cached positions of all slots. known[slot]: positions that are cached, ascending."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pages = Pages(num_blocks, block_size)
        self.known: dict[int, list[int]] = {}

    def enter(self, seen: TargetStates) -> list[NewPositions]:
        """Take blocks for the computed positions, and return those that entered.

        Entries at or after a computed position are dropped first. A position enters once the token after it is known.
        If too few blocks are free for a sequence, its positions do not enter.
        """
        stretches = []
        columns = zip(seen.slots, seen.tokens, seen.first, seen.count, seen.row, strict=True)
        for slot, tokens, first, count, row in columns:
            known = self.cut(slot, first)
            count = min(count, len(tokens) - 1 - first)
            begin = len(known)
            if count < 1 or not self.pages.grow(slot, begin + count):
                continue
            known += range(first, first + count)
            stretches.append(NewPositions(slot, first, count, row, begin, tokens[first + 1 : first + 1 + count]))
        return stretches

    def lay_out(self, group: Sequence[NewPositions]) -> tuple[torch.Tensor, Batch]:
        """Return the rows in TargetStates.hidden, and one pass over the entries, each with the token that follows."""
        tables = self.pages.make_block_tables([s.slot for s in group])
        batch = lay_out([s.following for s in group], [s.begin for s in group], tables, self.pages.block_size)
        positions = torch.tensor([*chain.from_iterable(range(s.first, s.first + s.count) for s in group)])
        rows = torch.tensor([*chain.from_iterable(range(s.row, s.row + s.count) for s in group)])
        return rows, replace(batch, positions=positions)

    def cut(self, slot: int, position: int) -> list[int]:
        """Drop the positions from this one on. Return the known positions."""
        known = self.known.setdefault(slot, [])
        kept = bisect_left(known, position)
        if kept < len(known):
            del known[kept:]
            self.pages.cut(slot, kept)
        return known

    def reach(self, slot: int, tokens: Sequence[int]) -> int:
        """Return the number of known positions if the last one is just before the last token, else 0. With 0 no draft
        can follow."""
        known = self.cut(slot, len(tokens) - 1)
        return len(known) if known and known[-1] == len(tokens) - 2 else 0

    def remove(self, slot: int) -> None:
        """Drop all positions of the slot."""
        self.known.pop(slot, None)
        self.pages.release(slot)


def locate_entries(blocks: torch.Tensor, index: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the places of the entries with these indices in a sequence's blocks.

    [B], [n] → int64 [n]; or for n sequences: [n, B], [n, k] → [n, k].
    """
    return blocks.to(torch.int64).gather(-1, index // block_size) * block_size + index % block_size
