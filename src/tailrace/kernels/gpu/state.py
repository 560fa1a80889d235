"""What the kernels know of the slots, on the device: their records (program.py) and the tables of their edits
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
    """As kernels take them. records int64 [S, fields]; allowed, touched int32 [S, ⌈V / 32⌉]; tally int64 [S, V]:
    repeated · 2³² + counted; shift float32 [S, V, 2]: added before and after the penalties. The latter two are one
    entry until somebody needs them. What is not touched is not looked at, so nothing is ever cleared but bits."""

    records: torch.Tensor
    fields: int
    allowed: torch.Tensor
    touched: torch.Tensor
    tally: torch.Tensor
    shift: torch.Tensor


class SlotTables:
    """Written by whoever fills slots; 8 bytes per slot and id where somebody has penalties, as many where somebody has
    biases.

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
        """The slot's record."""
        self.tables.records[slot].copy_(there(torch.tensor(fields, dtype=torch.int64), self.device), non_blocking=True)

    def clear(self, slot: int, allowed: np.ndarray | None) -> None:
        """The slot's edits are none but these bans. allowed: uint32 [⌈V / 32⌉]; None: there are none."""
        self.tables.touched[slot].zero_()
        if allowed is None:
            self.tables.allowed[slot].fill_(-1)
        else:
            words = there(torch.from_numpy(allowed.view(np.int32).copy()), self.device)
            self.tables.allowed[slot].copy_(words, non_blocking=True)

    def make_room(self, tallies: bool, shifts: bool) -> None:
        """For slots that have some."""
        if tallies and not self.tallies:
            self.tables = self.tables._replace(tally=torch.empty(self.shape, dtype=torch.int64, device=self.device))
            self.tallies = 1
        if shifts and not self.shifts:
            shift = torch.empty((*self.shape, 2), dtype=torch.float32, device=self.device)
            self.tables, self.shifts = self.tables._replace(shift=shift), 1

    def amend(self, amendments: torch.Tensor) -> None:
        """Change entries. int64 [n · AMENDMENT] as edits.py has them, on the device; no two name the same."""
        count = amendments.numel() // AMENDMENT.value
        if count:
            amend[(triton.cdiv(count, BLOCK),)](
                self.tables, amendments, count, self.shape[1], self.tallies, self.shifts, BLOCK
            )
