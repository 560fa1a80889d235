"""The programs of all slots, in the memory layout of csrc/program.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tailrace import _cpu
from tailrace.kernels.program import Add, Ban, Edit, Mask, Penalty, Stage

MAX_EDITS, MAX_STAGES = 16, 20
GREEDY, PROCESSED, ENTROPY = 1, 2, 4
STAGES = (
    "temperature", "dynamic_temperature", "quadratic", "min_p", "top_k", "top_p", "top_a", "typical", "epsilon", "eta",
    "top_n_sigma", "xtc",
)  # fmt: skip


class EditRecord(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("ids", ctypes.c_void_p), ("values", ctypes.c_void_p),
        ("a", ctypes.c_double), ("b", ctypes.c_double), ("c", ctypes.c_double),
    ]  # fmt: skip


class StageRecord(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32), ("k", ctypes.c_int32),
        ("a", ctypes.c_double), ("b", ctypes.c_double), ("c", ctypes.c_double),
    ]  # fmt: skip


class ProgramRecord(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_int64), ("forced", ctypes.c_int64), ("history", ctypes.c_void_p), ("exempt", ctypes.c_void_p),
        ("num_exempt", ctypes.c_int32), ("repeated", ctypes.c_int32), ("counted", ctypes.c_int32),
        ("num_edits", ctypes.c_int32), ("num_stages", ctypes.c_int32), ("logprobs", ctypes.c_int32),
        ("flags", ctypes.c_int32), ("unused", ctypes.c_int32),
        ("edits", EditRecord * MAX_EDITS), ("stages", StageRecord * MAX_STAGES),
    ]  # fmt: skip


class Programs:
    """One program per slot, and what keeps the memory it points at alive."""

    def __init__(self, num_slots: int) -> None:
        self.records = (ProgramRecord * num_slots)()
        self._alive: list[list[Any]] = [[] for _ in range(num_slots)]

    @property
    def address(self) -> int:
        """Where the records lie."""
        return ctypes.addressof(self.records)

    def write(
        self, slot: int, *, key: int, stages: Sequence[Stage], exempt: np.ndarray, logprobs: int | None, flags: int,
        history: Any | None, repeated: int, counted: int,
    ) -> None:  # fmt: skip
        """What stays the same as long as the slot's request does. `history` (Counts) gets `repeated` and `counted` per draft."""
        record = self.records[slot]
        record.key, record.forced, record.flags = key, -1, flags
        record.logprobs = -1 if logprobs is None else logprobs
        record.history = None if history is None else history.address
        record.repeated, record.counted = repeated, counted
        record.exempt, record.num_exempt = exempt.ctypes.data, exempt.size
        record.num_stages = len(stages)
        for at, stage in enumerate(stages):
            record.stages[at] = StageRecord(STAGES.index(stage.kind), stage.k, stage.a, stage.b, stage.c)
        self._alive[slot] = [history, exempt]

    def write_edits(self, slot: int, edits: Sequence[Edit], forced: int | None) -> None:
        """What may change with every token."""
        record = self.records[slot]
        record.forced = -1 if forced is None else forced
        record.num_edits = len(edits)
        for at, edit in enumerate(edits):
            record.edits[at] = edit_record(edit)
        self._alive[slot][2:] = edits


def edit_record(edit: Edit) -> EditRecord:
    """The edit as csrc/program.h has it; `edit` must outlive it."""
    match edit:
        case Mask(words):
            return EditRecord(0, words.size, words.ctypes.data)
        case Ban(ids):
            return EditRecord(1, ids.size, ids.ctypes.data)
        case Add(ids, values):
            return EditRecord(2, ids.size, ids.ctypes.data, values.ctypes.data)
        case Penalty(counts, repetition, frequency, presence):
            return EditRecord(3, 0, counts.address, None, repetition, frequency, presence)
    raise TypeError(f"no kernel for {type(edit).__name__}")


class StepRecord(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p), ("type", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("vocab", "stride", "requests", "width")),
        *((name, ctypes.c_void_p) for name in (
            "programs", "slot", "source", "position", "start", "draft", "rule", "proposals", "skip",
            "token_ids", "num_tokens", "status", "kept", "logprob", "rank", "top_ids", "top_logprobs", "entropy")),
        ("top", ctypes.c_int64),
    ]  # fmt: skip


_mine = [ctypes.sizeof(kind) for kind in (EditRecord, StageRecord, ProgramRecord, StepRecord)]
if _mine != _cpu.struct_sizes():
    raise ImportError(
        f"tailrace._cpu was built from other sources: its structs have {_cpu.struct_sizes()} bytes, not {_mine}"
    )
