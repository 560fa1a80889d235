"""The needs of slots and the rows of a step, for every sampling backend: `SlotNeeds` and `StepRows` of
csrc/sample/sample.h. csrc/sample/check.cpp checks them."""

from __future__ import annotations

import ctypes
from typing import TypeVar

import numpy as np
import torch

from tailrace import _cpu
from tailrace.errors import ParameterError
from tailrace.kernels.constants import (
    COSTLY,
    ENTROPY,
    GREEDY,
    PROCESSED,
    REPORTED,
    STATEFUL,
    SURVIVORS,
    TAKEN,
    UNSUPPORTED,
)
from tailrace.kernels.plain import is_plain
from tailrace.kernels.program import STAGES, Program
from tailrace.kernels.proposals import shown
from tailrace.kernels.rows import Rows


def flags_of(program: Program) -> int:
    """Return the flags of a slot that holds this program."""
    return (
        TAKEN
        | GREEDY * program.greedy
        | PROCESSED * program.processed
        | ENTROPY * program.entropy
        | UNSUPPORTED * program.unsupported
        | REPORTED * (program.logprobs is not None or program.entropy)
        | STATEFUL * program.stateful
        | COSTLY * any(STAGES[stage.kind].slow for stage in program.stages)
        | SURVIVORS * program.survivors
    )


class SlotNeeds:
    """A table of slots, int32 [S, 2]: how many alternatives are reported (−1: no logprobs), and the flags of the
    program (0: the slot is empty)."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table
        self.address = table.ctypes.data

    @staticmethod
    def of(num_slots: int) -> SlotNeeds:
        """Return the table of empty slots."""
        return SlotNeeds(np.zeros((num_slots, 2), dtype=np.int32))

    def write(self, slot: int, program: Program) -> None:
        """Store the needs of a slot's program. The slot is then taken."""
        self.table[slot] = -1 if program.logprobs is None else program.logprobs, flags_of(program)

    def clear(self, slot: int) -> None:
        """Empty the slot."""
        self.table[slot] = 0


class RowsRecord(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("logits_rows", "vocab", "slots", "rows", "requests", "width")),
        *(
            (name, ctypes.c_void_p)
            for name in ("needs", "slot", "source", "position", "start", "draft", "rule", "mask")
        ),
        ("num_masks", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("companion", "scale")),
        ("flags", ctypes.c_int32),
        ("top", ctypes.c_int32),
    ]


RecordT = TypeVar("RecordT", bound=RowsRecord)


def check_rows(logits: torch.Tensor, rows: Rows, needs: SlotNeeds) -> RowsRecord:
    """Return a record with the needs of all slots in a step: the union of their `flags`, and `top`, the most
    alternatives.

    Args:
        logits: [L, V]; only the shape is read.

    Raises:
        ParameterError: shapes or dtypes do not fit; a slot is empty; a source, position, draft or mask is out of range.
    """
    return filled(RowsRecord(), logits, rows, needs)


def filled(record: RecordT, logits: torch.Tensor, rows: Rows, needs: SlotNeeds) -> RecordT:
    """Fill in and return the record of these rows. `rows` and `needs` must outlive it.

    Raises:
        ParameterError: see `check_rows`.
    """
    record.logits_rows, record.vocab = logits.shape
    record.slots, record.needs = len(needs.table), needs.address
    check_shapes(rows, record.vocab)
    record.rows, record.requests, record.width = rows.num_rows, rows.num_requests, rows.width
    record.slot, record.source, record.position = rows.slot.data_ptr(), rows.source.data_ptr(), rows.position.data_ptr()
    record.start, record.draft = rows.start.data_ptr(), rows.draft.data_ptr()
    if rows.rule is not None:
        record.rule = rows.rule.data_ptr()
    if rows.mask is not None and rows.masks is not None:
        record.mask, record.num_masks = rows.mask.data_ptr(), len(rows.masks)
    if (guidance := rows.guidance) is not None:
        record.companion, record.scale = guidance.companion.data_ptr(), guidance.scale.data_ptr()
    try:
        _cpu.check(ctypes.addressof(record))
    except _cpu.FieldError as error:
        raise ParameterError(str(error), error.field) from None
    return record


def check_shapes(rows: Rows, vocab: int) -> None:
    """Raise ParameterError unless the rows' columns have the right lengths."""
    count, n, width = rows.num_rows, rows.num_requests, rows.width
    if n < 0 or not rows.source.numel() == rows.position.numel() == rows.draft.numel() == count:
        raise ParameterError(
            f"source, position and draft must have {count} entries, as slot has; start at least one", "source"
        )
    if rows.rule is not None and rows.rule.numel() != n:
        raise ParameterError(f"rule must have {n} entries, one per request, got {rows.rule.numel()}", "rule")
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= max(1, count):
        raise ParameterError(f"width must be an integer in [1, {max(1, count)}], got {width!r:.100}", "width")
    if rows.mask is not None:
        check_masks(rows.mask, rows.masks, count, vocab)
    if (guidance := rows.guidance) is not None and not (guidance.companion.numel() == guidance.scale.numel() == count):
        raise ParameterError(f"companion and scale must have {count} entries, as slot has", "companion")


def check_masks(mask: torch.Tensor, masks: torch.Tensor | None, count: int, vocab: int) -> None:
    """Raise ParameterError unless each row has a place, and the masks have this vocabulary. The numbers in `mask` are
    checked later."""
    if (
        not isinstance(mask, torch.Tensor)
        or not is_plain(mask)
        or mask.dtype != torch.int64
        or mask.shape != (count,)
        or not mask.is_contiguous()
    ):
        raise ParameterError(f"mask must be contiguous int64 [{count}], got {shown(mask)}", "mask")
    words = -(-vocab // 32)
    if (
        not isinstance(masks, torch.Tensor)
        or not is_plain(masks)
        or masks.dtype != torch.int32
        or masks.dim() != 2
        or masks.shape[1] != words
        or not masks.is_contiguous()
    ):
        raise ParameterError(
            f"masks must be contiguous int32 [M, {words}] where rows have a mask, got {shown(masks)}", "masks"
        )
