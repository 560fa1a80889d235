"""Long-lived memory: weights, keys and values."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from collections.abc import Sequence

import torch

from tailrace import _cpu

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14; other systems allocate memory when it is first written
AHEAD = 256 << 20  # bytes
AT_ONCE = 256 << 10  # bytes, about, in less than a millisecond: during the call the process can't map memory


def lasting(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor [elements], in large pages where the system has them (csrc/base/pages.cpp)."""
    found = torch.empty(elements, dtype=dtype)
    _cpu.want_large_pages(found.data_ptr(), found.nbytes)
    return found


class MemoryAhead:
    """A thread that makes the system allocate the blocks that are used next.

    The system allocates memory when it is first written. That takes longer than attention takes to read the memory: a
    step in which each of 32 streams began a block took two to three times as long as the other steps.

    Args:
        parts: contiguous tensors [blocks, …], whose blocks are at first used in their order.
        ahead: bytes to allocate at a time, in advance.
    """

    def __init__(self, parts: Sequence[torch.Tensor], ahead: int = AHEAD) -> None:
        self.parts = [part for part in parts if part.shape[0]]
        self.blocks = min((part.shape[0] for part in self.parts), default=0)
        each = sum(part.nbytes // part.shape[0] for part in self.parts)
        self.ahead = math.ceil(ahead / max(1, each))
        self.asked = 0  # blocks
        self.thread: threading.Thread | None = None

    def used(self, blocks: int) -> None:
        """Note that the first `blocks` blocks are in use, and allocate the next ones if few are left."""
        if self.asked == self.blocks or blocks + self.ahead // 2 < self.asked:
            return
        if self.thread is not None and self.thread.is_alive():
            return
        begin, end = max(blocks, self.asked), min(self.blocks, max(blocks, self.asked) + self.ahead)
        self.thread = threading.Thread(target=populate, args=(self.parts, begin, end), daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # no thread could start: the steps allocate their memory themselves
            self.thread, end = None, self.blocks
        self.asked = end


def populate(parts: Sequence[torch.Tensor], begin: int, end: int) -> None:
    """Make the system allocate these blocks. Their contents stay. Do nothing on a system without
    MADV_POPULATE_WRITE."""
    try:
        advise = ctypes.CDLL(None, use_errno=True).madvise
    except (AttributeError, OSError, TypeError):
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    step = max(1, AT_ONCE // max((part.nbytes // part.shape[0] for part in parts), default=1))
    for first in range(begin, end, step):
        for part in parts:
            some = part[first : min(first + step, end)]
            start = some.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            if advise(start, some.data_ptr() + some.nbytes - start, POPULATE_WRITE):
                return
