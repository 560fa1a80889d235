"""Memory of the cache is asked for ahead of its use, and nothing that lies in it changes."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from tailrace.kernels.cpu.memory import MemoryAhead, populate

BLOCKS, EACH = 64, 1 << 20  # bytes


def untouched(blocks: int) -> torch.Tensor:
    """[blocks, EACH] of memory that nobody had before; torch may give what it has used already."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return torch.frombuffer(mmap.mmap(-1, blocks * EACH, flags=flags), dtype=torch.uint8).view(blocks, EACH)


def held(part: torch.Tensor) -> int:
    """Bytes of whole blocks from the start on for which the system has given memory."""
    entries = part.nbytes // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(part.data_ptr() // mmap.PAGESIZE * 8)
        words = torch.frombuffer(bytearray(file.read(entries * 8)), dtype=torch.int64)
    absent = (words >= 0).nonzero()  # the highest bit: present
    return int(absent[0]) * mmap.PAGESIZE if len(absent) else part.nbytes


def populates() -> bool:
    probe = untouched(1)
    populate([probe], 0, 1)
    return Path("/proc/self/pagemap").exists() and held(probe) > EACH // 2


@pytest.mark.skipif(not populates(), reason="the system can't be asked for memory ahead")
def test_memory_is_there_before_blocks_are_used():
    part = untouched(BLOCKS)
    assert held(part) < 8 * EACH
    ahead = MemoryAhead([part], ahead=16 * EACH)
    ahead.used(0)
    assert ahead.thread is not None
    ahead.thread.join()
    assert held(part) >= 15 * EACH
    for used in range(1, BLOCKS + 1):
        ahead.used(used)
        ahead.thread.join()
        assert held(part) >= (used - 1) * EACH
        assert ahead.asked <= BLOCKS
    assert ahead.asked == BLOCKS


def test_what_lies_there_stays():
    parts = [torch.full((8, 5000), value, dtype=torch.int32) for value in (1, -7)]
    populate(parts, 0, 8)
    assert [part.unique().tolist() for part in parts] == [[1], [-7]]


def test_without_blocks_nothing_is_asked_for():
    for parts in ([], [torch.empty(0, 4)]):
        ahead = MemoryAhead(parts)
        ahead.used(0)
        assert ahead.thread is None
