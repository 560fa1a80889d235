"""The device's copy of the slots: their programs and edits, updated by their changes.

The host's state is authoritative; the device follows. A committed token costs one copy of the changed entries, together
with the step's rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from tailrace.kernels.gpu.program import PENALISED, SHIFTED, has, idle, is_lean, record
from tailrace.kernels.gpu.state import SlotTables
from tailrace.kernels.program import Edit, Program
from tailrace.kernels.rows import Rows
from tailrace.sampling.backends.edit_table import EditTable, can_follow, find_changes
from tailrace.sampling.slots import Slots


@dataclass(slots=True)
class DeviceSlot:
    """The device's state of a slot. lean: the lean scan can process the slot's rows if they have no mask."""

    program: Program
    edits: list[Edit]
    entries: EditTable
    flags: int
    lean: bool


class DeviceSlots:
    """The slots that the device serves, and its state of each."""

    def __init__(self, slots: Slots, device: torch.device) -> None:
        count = len(slots.slots)
        self.slots = slots
        self.state = SlotTables(count, slots.vocab_size, device)
        self.here: list[DeviceSlot | None] = [None] * count
        self.idle: set[int] = set()  # Slots whose records on the device are idle.
        self.stale = [True] * count  # Slots that changed since their last copy.
        self.unsorted: set[int] = set()  # Edits changed since the last `_classify_slot`.
        self.unsupported: set[int] = set()  # Slots that need more than the kernels have.
        self.unsupported_drafts: set[int] = set()  # Slots whose drafts need more than that.
        self.forcing: set[int] = set()  # Slots with forced tokens.

    def mark_changed(self, slot: int, *, edits: bool) -> None:
        """Record that the slot's distribution has changed."""
        self.stale[slot] = True
        if edits:
            self.unsorted.add(slot)

    def falling_back(self, rows: Rows) -> list[int]:
        """Return the requests of a step that need more than the kernels have."""
        for slot in self.unsorted:
            self._classify_slot(slot)
        self.unsorted.clear()
        if not (self.unsupported if rows.width == 1 else self.unsupported or self.unsupported_drafts):
            return []
        owners = rows.owners.tolist()
        found = {i for i, owner in enumerate(owners) if owner in self.unsupported}
        if rows.width > 1:
            drafted = (rows.start.diff() > 1).tolist()
            found |= {i for i, owner in enumerate(owners) if drafted[i] and owner in self.unsupported_drafts}
        return sorted(found)

    def serves(self, slot: int) -> bool:
        """Return whether the kernels have everything that the slot needs."""
        if slot in self.unsorted:
            self._classify_slot(slot)
            self.unsorted.discard(slot)
        return slot not in self.unsupported

    def _classify_slot(self, slot: int) -> None:
        """Store whether the kernels serve the slot."""
        entry = self.slots.slots[slot]
        served = entry is None or (has(entry.program) and can_follow(entry.next_edits, entry.moves))
        moves = entry is not None and entry.moves_with_drafts
        for found, is_so in ((self.unsupported, not served), (self.unsupported_drafts, moves)):
            (found.add if is_so else found.discard)(slot)

    def follow(self, owners: Iterable[int], elsewhere: set[int]) -> list[int]:
        """Copy the changed records of these slots to the device. Return their changed entries as amendments, int64, in
        the format of kernels/gpu/edits.py.

        elsewhere: slots whose rows the reference sampler draws; the kernels do the least possible work for them.
        """
        amendments: list[int] = []
        stale = self.stale
        for owner in owners:
            if owner in elsewhere:
                self._clear_owner(owner)
                stale[owner] = True
            elif stale[owner]:
                amendments += self._update_owner(owner)
                stale[owner] = False
        return amendments

    def forced(self, owners: Sequence[int]) -> dict[int, int]:
        """Return row → forced token."""
        if not self.forcing:
            return {}
        found = {row: self.slots[owner].forced for row, owner in enumerate(owners) if owner in self.forcing}
        return {row: token for row, token in found.items() if token is not None}

    def is_lean(self, owner: int) -> bool:
        """Return whether the lean scan processes the slot's rows. This includes rows that the reference sampler
        draws."""
        return (here := self.here[owner]) is None or here.lean

    def _clear_owner(self, owner: int) -> None:
        if self.here[owner] is not None or owner not in self.idle:
            self.state.write(owner, idle())
            self.here[owner] = None
            self.idle.add(owner)

    def _update_owner(self, owner: int) -> list[int]:
        slot, here = self.slots[owner], self.here[owner]
        program, edits = slot.program, slot.next_edits
        (self.forcing.add if slot.sequence_state.forced else self.forcing.discard)(owner)
        counted = slot.history.follow() if slot.history is not None and slot.history.counts is not None else set()
        known = here if here is not None and here.program is program else None
        if known is not None and known.edits is edits:
            return self._list_amendments(owner, counted, known.entries) if counted else []
        entries = EditTable.of(edits)
        flags = entries.flags | (0 if known is None else known.flags)
        if known is not None and known.flags == flags and known.entries.allowed is entries.allowed:
            changed, lean = find_changes(known.entries, entries) | counted, known.lean
        else:
            changed, lean = self._rewrite_record(owner, program, entries, flags)
        self.here[owner] = DeviceSlot(program, edits, entries, flags, lean)
        self.idle.discard(owner)
        return self._list_amendments(owner, changed, entries)

    def _rewrite_record(self, owner: int, program: Program, entries: EditTable, flags: int) -> tuple[set[int], bool]:
        """Write the slot's record again. Return the ids whose entries it needs, and whether the slot is lean."""
        changed = entries.ids
        if entries.penalty is not None:
            changed |= set(entries.penalty.counts.lists()[0])
        if flags:
            self.state.clear(owner, entries.allowed)
        self.state.make_room(bool(flags & PENALISED.value), bool(flags & SHIFTED.value))
        fields = record(program, flags, entries.penalty)
        self.state.write(owner, fields)
        return changed, is_lean(fields)

    def _list_amendments(self, owner: int, ids: set[int], entries: EditTable) -> list[int]:
        """Return the amendments, int64, in the format of kernels/gpu/edits.py."""
        out: list[int] = []
        counts = None if entries.penalty is None else entries.penalty.counts
        for id in ids:
            allowed = entries.allowed is None or (int(entries.allowed[id // 32]) >> (id % 32)) & 1
            repeated, counted = (0, 0) if counts is None else counts.of(id)
            before, later = entries.before.get(id, 0.0), entries.later.get(id, 0.0)
            # An id without edits is listed too: its entry must be overwritten.
            state = 2 | int(bool(allowed) and id not in entries.banned)
            out += (owner << 32 | id, state, repeated << 32 | counted, pack_floats(later, before))
        return out


def pack_floats(high: float, low: float) -> int:
    """Pack two float32 into an int64."""
    return struct.unpack("<q", struct.pack("<ff", low, high))[0]
