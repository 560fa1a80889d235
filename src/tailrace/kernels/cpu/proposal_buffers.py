"""Memory for the distributions that drafts are drawn from. It is used again once nobody refers to it.

Fresh memory would cost more than writing the distributions: the system clears each page when it is first touched. A row
with few entries is not filled with zeros again either: `Written` in csrc/sample/draw.h notes which entries it wrote. So
every other writer must use `ProposalBuffer.write`.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch

from tailrace import _cpu


class ProposalBuffer:
    """Memory for `count` distributions. q: float32 [count, V], contiguous, on the CPU. A row's contents are undefined
    until it is written."""

    def __init__(self, q: torch.Tensor, notes: np.ndarray) -> None:
        self.q, self._notes = q, notes
        self._first, self._first_note = q.data_ptr(), notes.ctypes.data

    def addresses(self, row: int) -> tuple[int, int]:
        """Return the addresses of the row and of its note."""
        return self._first + row * self.q.shape[1] * 4, self._first_note + row * self._notes.strides[0]

    def fits(self, row: int, vocab_size: int) -> bool:
        """Return whether the buffer has this row, of `vocab_size` tokens."""
        return 0 <= row < self.q.shape[0] and self.q.shape[1] == vocab_size

    def write(self, row: int, q: torch.Tensor) -> None:
        """Set the row to q [V]."""
        self._notes[row, 0] = -1
        self.q[row] = q


class ProposalBuffers:
    """A pool of buffers. A buffer returns to the pool when the last tensor over its memory is gone."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._free: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # the number of rows, a power of two → buffers

    def acquire(self, count: int) -> ProposalBuffer:
        """Return a buffer of `count` rows."""
        rows = 1 << (count - 1).bit_length()
        free = self._free.setdefault(rows, [])
        memory, notes = free.pop() if free else self._fresh(rows)
        lent = memory[:count]  # every tensor over it refers to this array
        weakref.finalize(lent, free.append, (memory, notes)).atexit = False
        return ProposalBuffer(torch.from_numpy(lent), notes)

    def _fresh(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        notes = np.empty((rows, 1 + _cpu.NOTED), np.int32)
        notes[:, 0] = -1
        return np.empty((rows, self.vocab_size), np.float32), notes
