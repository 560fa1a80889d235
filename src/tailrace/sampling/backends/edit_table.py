"""The effect of a slot's edits on single token ids, as a GPU stores it (kernels/gpu/edits.py), and changes of this
effect."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tailrace.kernels.gpu.program import ALLOWED, PENALISED, SHIFTED
from tailrace.kernels.program import Add, Ban, Edit, Lift, Mask, Penalty

MANY = 8192  # most entries that may change with every token; beyond it the reference sampler draws


@dataclass(slots=True)
class EditTable:
    """The effect of a program's edits on single ids.

    - banned: ids that must not come, even if they are in `allowed`.
    - before, later: numbers that are added before and after the penalties.
    """

    allowed: np.ndarray | None = None
    banned: set[int] = field(default_factory=set)
    before: dict[int, float] = field(default_factory=dict)
    later: dict[int, float] = field(default_factory=dict)
    penalty: Penalty | None = None

    @staticmethod
    def of(edits: list[Edit]) -> EditTable:
        """Build the table. The edits are in the order of method_order.py."""
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
        """Return which of the device's tables the edits need."""
        return (
            ALLOWED.value * (self.allowed is not None or bool(self.banned))
            | SHIFTED.value * bool(self.before or self.later)
            | PENALISED.value * (self.penalty is not None)
        )

    @property
    def ids(self) -> set[int]:
        """Return all ids that the edits name, except the penalised ones."""
        return self.banned | self.before.keys() | self.later.keys()


def can_follow(edits: list[Edit], moves: bool) -> bool:
    """Return whether the device's tables can represent the edits. Four conditions must hold:

    - At most one number is added to an id on each side of the penalties. (Two additions in a row differ from the
      addition of the sum.)
    - At most MANY entries move with every token.
    - No edit lifts a ban.
    - The history's penalty is the only penalty.
    """
    added: list[set[int]] = [set(), set()]  # ids with an addition before, and after the penalties
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
    """Return the ids whose entries differ."""
    differ = old.banned ^ new.banned
    for was, now in ((old.before, new.before), (old.later, new.later)):
        differ |= {id for id, _ in was.items() ^ now.items()}
    return differ
