"""What a slot's edits do to single token ids: the form in which a GPU has them (kernels/gpu/edits.py), and what of it
changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tailrace.kernels.gpu.program import ALLOWED, PENALISED, SHIFTED
from tailrace.kernels.program import Add, Ban, Edit, Lift, Mask, Penalty

MANY = 8192  # entries that may move with every token; with more a request falls back to the reference sampler


@dataclass(slots=True)
class EditTable:
    """What a program's edits do to single ids. banned: those that may not come, of `allowed` too. before, later: what
    is added, on this or that side of the penalties."""

    allowed: np.ndarray | None = None
    banned: set[int] = field(default_factory=set)
    before: dict[int, float] = field(default_factory=dict)
    later: dict[int, float] = field(default_factory=dict)
    penalty: Penalty | None = None

    @staticmethod
    def of(edits: list[Edit]) -> EditTable:
        """Of edits in the order of method_order.py."""
        found = EditTable()
        for edit in edits:
            match edit:
                case Mask(words):
                    found.allowed = words
                case Ban(ids):
                    found.banned.update(ids.tolist())
                case Add(ids, values):
                    added = found.before if found.penalty is None else found.later
                    added.update(zip(ids.tolist(), values.tolist(), strict=True))
                case Penalty():
                    found.penalty = edit
        return found

    @property
    def flags(self) -> int:
        """Which of the device's tables they need."""
        return (
            ALLOWED.value * (self.allowed is not None or bool(self.banned))
            | SHIFTED.value * bool(self.before or self.later)
            | PENALISED.value * (self.penalty is not None)
        )

    @property
    def ids(self) -> set[int]:
        """All that is named, but for the penalised ones."""
        return self.banned | self.before.keys() | self.later.keys()


def can_follow(edits: list[Edit], moves: bool) -> bool:
    """To no id two numbers are added one after the other, which is not their sum; not too many entries move with every
    token; nothing is lifted, and no penalty but the history's own is there, for which the device has no tables."""
    added: list[set[int]] = [set(), set()]  # before and after the penalties
    side = count = 0
    for edit in edits:
        if isinstance(edit, Lift) or (isinstance(edit, Penalty) and edit.fixed):
            return False
        if isinstance(edit, Penalty):
            side = 1
        elif moves and isinstance(edit, Add | Ban) and (count := count + edit.ids.size) > MANY:
            return False
        elif isinstance(edit, Add):
            ids = set(edit.ids.tolist())
            if ids & added[side]:
                return False
            added[side] |= ids
    return True


def find_changes(old: EditTable, new: EditTable) -> set[int]:
    """Ids whose entries are no longer the same."""
    differ = old.banned ^ new.banned
    for was, now in ((old.before, new.before), (old.later, new.later)):
        differ |= {id for id, _ in was.items() ^ now.items()}
    return differ
