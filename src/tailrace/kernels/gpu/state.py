"""The slots on the device, as kernels read them: their records (program.py) and the tables of their edits
(edits.py)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton

from tailrace.kernels.gpu.edits import AMENDMENT, BLOCK, amend
from tailrace.kernels.gpu.program import FIELDS, check
from tailrace.kernels.transfer import there


class Tables(NamedTuple):
    """The tables of all slots, as kernels take them.

    - records: int64 [S, fields].
    - allowed, touched: int32 [S, ⌈V / 32⌉].
    - tally: int64 [S, V], repeated · 2³² + counted.
    - shift: float32 [S, V, 2], the numbers added before and after the penalties.

    tally and shift have one entry until a slot needs them. Entries that are not touched are not read, so only the bits
    are ever cleared.
    """

    records: torch.Tensor
    fields: int
    allowed: torch.Tensor
    touched: torch.Tensor
    tally: torch.Tensor
    shift: torch.Tensor


class SlotTables:
    """The tables of all slots, with the functions that write them.

    They take 8 bytes per slot and id once a slot has penalties, and 8 more once a slot has biases.

    Raises:
        ValueError: the vocabulary is too large.
    """

    def __init__(self, num_slots: int, vocab: int, device: torch.device) -> None:
        check(vocab)
        self.shape, self.device = (num_slots, vocab), device
        allowed, touched = (
            torch.zeros((num_slots, -(-vocab // 32)), dtype=torch.int32, device=device) for _ in range(2)
        )
        records = torch.zeros((num_slots, FIELDS), dtype=torch.int64, device=device)
        tally, shift = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, device=device)
        self.tallies = self.shifts = 0
        self.tables = Tables(records, FIELDS, allowed, touched, tally, shift)

    def write(self, slot: int, fields: list[int]) -> None:
        """Set the slot's record."""
        self.tables.records[slot].copy_(there(torch.tensor(fields, dtype=torch.int64), self.device), non_blocking=True)

    def clear(self, slot: int, allowed: np.ndarray | None) -> None:
        """Reset the slot's edits to these bans. allowed: uint32 [⌈V / 32⌉]; None: no bans."""
        self.tables.touched[slot].zero_()
        if allowed is None:
            self.tables.allowed[slot].fill_(-1)
        else:
            words = there(torch.from_numpy(allowed.view(np.int32).copy()), self.device)
            self.tables.allowed[slot].copy_(words, non_blocking=True)

    def make_room(self, tallies: bool, shifts: bool) -> None:
        """Allocate the tables of tallies and of shifts, if slots need them."""
        if tallies and not self.tallies:
            self.tables = self.tables._replace(tally=torch.empty(self.shape, dtype=torch.int64, device=self.device))
            self.tallies = 1
        if shifts and not self.shifts:
            shift = torch.empty((*self.shape, 2), dtype=torch.float32, device=self.device)
            self.tables, self.shifts = self.tables._replace(shift=shift), 1

    def amend(self, amendments: torch.Tensor) -> None:
        """Change entries. amendments: int64 [n · AMENDMENT] on the device, see edits.py; no two name the same entry."""
        count = amendments.numel() // AMENDMENT.value
        if count:
            amend[(triton.cdiv(count, BLOCK),)](
                self.tables, amendments, count, self.shape[1], self.tallies, self.shifts, BLOCK
            )
