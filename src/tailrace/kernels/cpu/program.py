"""The programs of all slots, in the memory layout of csrc/sample/program.h."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from tailrace import _cpu
from tailrace.kernels import constants
from tailrace.kernels.needs import RowsRecord, SlotNeeds, flags_of
from tailrace.kernels.program import (
    MAX_EDITS,
    MAX_STAGES,
    STAGE_NUMBERS,
    STAGES,
    Add,
    Ban,
    Edit,
    Lift,
    Mask,
    Penalty,
    Program,
    Stage,
    Tournament,
)
from tailrace.kernels.rows import PLACES
from tailrace.kernels.status import EMPTY, INF, NAN, OK

STATE = ("mirostat_mu", "adaptive_sum", "adaptive_weight")  # of a sequence, in the order of csrc/sample/program.h


class EditRecord(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("ids", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("a", ctypes.c_double),
        ("b", ctypes.c_double),
        ("c", ctypes.c_double),
    ]


class TournamentRecord(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_size", ctypes.c_int64),
        ("depth", ctypes.c_int32),
        ("context", ctypes.c_int32),
        ("recent", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    ]


class StageRecord(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("a", ctypes.c_double),
        ("b", ctypes.c_double),
        ("c", ctypes.c_double),
        ("tournament", ctypes.c_void_p),
    ]


class ProgramRecord(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_int64),
        ("forced", ctypes.c_int64),
        ("history", ctypes.c_void_p),
        ("said", ctypes.c_void_p),
        ("exempt", ctypes.c_void_p),
        ("num_exempt", ctypes.c_int32),
        ("repeated", ctypes.c_int32),
        ("counted", ctypes.c_int32),
        ("num_edits", ctypes.c_int32),
        ("num_stages", ctypes.c_int32),
        ("logprobs", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("state", ctypes.c_double * len(STATE)),
        ("edits", EditRecord * MAX_EDITS),
        ("stages", StageRecord * MAX_STAGES),
    ]


class Programs:
    """One program per slot, and references to the memory that it points at. The programs of single rows follow; they
    last for one step."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.needs = SlotNeeds.of(num_slots)
        self.records = (ProgramRecord * num_slots)()
        self._alive: list[list[Any]] = [[] for _ in range(num_slots)]

    @property
    def address(self) -> int:
        """The address of the first record."""
        return ctypes.addressof(self.records)

    def write(self, slot: int, program: Program) -> None:
        """Store the program of a slot. The slot is then taken."""
        record = self.records[slot]
        record.key, record.forced, record.num_edits = program.key, -1, 0
        record.flags = flags_of(program)
        record.logprobs = -1 if program.logprobs is None else program.logprobs
        self.needs.write(slot, program)
        record.history = None if program.counts is None else program.counts.address
        record.said = None if program.said is None else program.said.address
        record.repeated, record.counted = program.weights
        record.exempt, record.num_exempt = program.exempt.ctypes.data, program.exempt.size
        record.num_stages = len(program.stages)
        tournaments = [stage.tournament and tournament_record(stage.tournament) for stage in program.stages]
        for at, (stage, tournament) in enumerate(zip(program.stages, tournaments, strict=True)):
            record.stages[at] = stage_record(stage, tournament)
        self._alive[slot] = [(program, tournaments)]

    def write_state(self, slot: int, state: Mapping[str, float]) -> None:
        """Store the state of the slot's methods after the last token of its sequence."""
        self.records[slot].state = tuple(state.get(name, 0.0) for name in STATE)

    def write_edits(self, place: int, edits: Sequence[Edit], forced: int | None) -> None:
        """Store the parts of a program that may change with every token."""
        record = self.records[place]
        record.forced = -1 if forced is None else forced
        record.num_edits = len(edits)
        for at, edit in enumerate(edits):
            record.edits[at] = edit_record(edit)
        self._alive[place][1:] = edits

    def make_room(self, rows: int) -> None:
        """Make room for the programs of `rows` single rows, after those of the slots. `address` may change."""
        if (missing := self.num_slots + rows - len(self.records)) > 0:
            larger = (ProgramRecord * (len(self.records) + missing))()
            ctypes.memmove(larger, self.records, ctypes.sizeof(self.records))
            self.records = larger
            self._alive += [[] for _ in range(missing)]

    def derive(self, row: int, slot: int, edits: Sequence[Edit], forced: int | None) -> int:
        """Make the program of the step's `row`-th row: the slot's, with edits that include all drafts before the row.

        Returns its index among the records.
        """
        place = self.num_slots + row
        self.records[place] = self.records[slot]
        self.records[place].history = None
        self._alive[place] = [self._alive[slot][0]]
        self.write_edits(place, edits, forced)
        return place

    def clear(self, slot: int) -> None:
        """Empty the slot."""
        self.records[slot].flags = self.records[slot].num_edits = 0
        self.needs.clear(slot)
        self._alive[slot] = []


def edit_record(edit: Edit) -> EditRecord:
    """Return the edit in the layout of csrc/sample/program.h. `edit` must outlive the record."""
    match edit:
        case Mask(words):
            return EditRecord(0, words.size, words.ctypes.data)
        case Ban(ids):
            return EditRecord(1, ids.size, ids.ctypes.data)
        case Add(ids, values):
            return EditRecord(2, ids.size, ids.ctypes.data, values.ctypes.data)
        case Penalty(counts, repetition, frequency, presence):
            return EditRecord(3, 0, counts.address, None, repetition, frequency, presence)
        case Lift(ids, factor):
            return EditRecord(4, ids.size, ids.ctypes.data, None, factor)
    raise TypeError(f"no kernel for {type(edit).__name__}")


def stage_record(stage: Stage, tournament: TournamentRecord | None) -> StageRecord:
    """Return the stage in the layout of csrc/sample/program.h. `tournament` must outlive the record."""
    where = None if tournament is None else ctypes.addressof(tournament)
    return StageRecord(STAGE_NUMBERS[stage.kind], stage.k, stage.a, stage.b, stage.c, where)


def tournament_record(given: Tournament) -> TournamentRecord:
    """Return the tournament in the layout of csrc/sample/program.h. `given` must outlive the record."""
    record = TournamentRecord(key=given.key, depth=given.depth, context=given.context, recent=given.recent)
    if given.keys is not None and given.table is not None:
        record.keys, record.table, record.table_size = given.keys.ctypes.data, given.table.ctypes.data, given.table.size
    return record


class StepRecord(RowsRecord):
    _fields_ = [  # noqa: RUF012  # ctypes wants it so
        ("logits", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("stride", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("programs", "proposals", "masks", "program"),
                *("token_ids", "num_tokens", "status", "numbers", "ranks", "seconds", "updates"),
                "survivors",
            )
        ),
    ]


_sizes = [
    ctypes.sizeof(kind) for kind in (EditRecord, TournamentRecord, StageRecord, ProgramRecord, RowsRecord, StepRecord)
]
_stages = tuple((kind, info.needs) for kind, info in STAGES.items())
if _sizes != _cpu.struct_sizes():
    raise ImportError(
        f"tailrace._cpu was built from other sources: its structs have {_cpu.struct_sizes()} bytes, not "
        f"{_sizes}; build it again (make install)"
    )
_numbers = {name: number for name, number in vars(constants).items() if name.isupper()}
_numbers |= {"OK": OK, "EMPTY": EMPTY, "NAN": NAN, "INF": INF}
_theirs = getattr(_cpu, "CONSTANTS", {})  # an older build lacks the table
if _others := [
    f"{name} is {_theirs.get(name, 'missing')} in csrc/ and {_numbers.get(name, 'missing')} in kernels/"
    for name in sorted(_numbers.keys() | _theirs.keys())
    if _numbers.get(name) != _theirs.get(name)
]:
    raise ImportError(f"shared numbers differ (after a change in csrc/: make install): {'; '.join(_others)}")
if PLACES != _cpu.RULES:
    raise ImportError(f"the rules are {_cpu.RULES} in csrc/ and {PLACES} in kernels/rows.py")
if _stages != _cpu.STAGES:
    _pairs = [
        f"number {number} is {theirs} in csrc/sample/program.h and {ours} in kernels/program.py"
        for number, (theirs, ours) in enumerate(zip_longest(_cpu.STAGES, _stages, fillvalue="missing"))
        if theirs != ours
    ]
    raise ImportError(f"the stages differ (after a change in csrc/: make install): {'; '.join(_pairs)}")
