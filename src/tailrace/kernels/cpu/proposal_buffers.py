"""Memory for the distributions that drafts are drawn from, used again once nobody holds it.

Fresh memory would cost more than what is written there: the system clears each page when it is touched first. And a row
whose entries are few is not filled with zeros again: csrc/draw.h notes what it wrote. So nobody else may write to it,
but through `ProposalBuffer.write`.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch

from tailrace import _cpu


class ProposalBuffer:
    """Room for `count` distributions. q: float32 [count, V], contiguous, on the CPU; a row is anything until it is
    written."""

    def __init__(self, q: torch.Tensor, notes: np.ndarray) -> None:
        self.q, self._notes = q, notes
        self._first, self._first_note = q.data_ptr(), notes.ctypes.data

    def addresses(self, row: int) -> tuple[int, int]:
        """Where the row lies, and its note."""
        return self._first + row * self.q.shape[1] * 4, self._first_note + row * self._notes.strides[0]

    def fits(self, row: int, vocab_size: int) -> bool:
        """There is such a row, of so many tokens."""
        return 0 <= row < self.q.shape[0] and self.q.shape[1] == vocab_size

    def write(self, row: int, q: torch.Tensor) -> None:
        """The row becomes q [V]."""
        self._notes[row, 0] = -1
        self.q[row] = q


class ProposalBuffers:
    """A pool of buffers: hands them out, and gets them back when the last tensor over them is gone."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._free: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # by the number of rows, a power of two

    def acquire(self, count: int) -> ProposalBuffer:
        """Room for so many."""
        rows = 1 << (count - 1).bit_length()
        free = self._free.setdefault(rows, [])
        memory, notes = free.pop() if free else self._fresh(rows)
        lent = memory[:count]  # every tensor over it keeps this one alive
        weakref.finalize(lent, free.append, (memory, notes)).atexit = False
        return ProposalBuffer(torch.from_numpy(lent), notes)

    def _fresh(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        notes = np.empty((rows, 1 + _cpu.NOTED), np.int32)
        notes[:, 0] = -1
        return np.empty((rows, self.vocab_size), np.float32), notes
