"""Programs for drafts of slots whose edits move from token to token (bad words, DRY, windows, forced tokens, …).

Each row gets its own program, which assumes that the drafts before the row are output. The kernels then verify these
rows like all others. Slots whose edits stay the same need no such programs: the kernels themselves add drafts to the
counts of a penalty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.program import Programs
from tailrace.kernels.program import Edit, Penalty
from tailrace.kernels.rows import Rows
from tailrace.sampling.slots import Slots


def write_draft_programs(programs: Programs, slots: Slots, rows: Rows, requests: Iterable[int]) -> torch.Tensor:
    """Return each row's place in `programs`, int64 [R]: its slot, or the place of its own program. The result is valid
    until the next call.

    Args:
        requests: requests whose rows get a program each. Their slots do not change.
    """
    places = rows.slot.clone()
    programs.make_room(rows.num_rows)
    for i in requests:
        first, bonus = int(rows.start[i]), int(rows.start[i + 1]) - 1
        index = int(rows.slot[first])
        entry, drafts = slots[index], rows.draft[first:bonus].tolist()
        entry.updates.clear()  # updates of an earlier step; drafts update no state here
        for row in range(first, bonus + 1):
            places[row] = programs.derive(
                row, index, [freeze_edit(edit) for edit in entry.kernel_edits()], entry.forced
            )
            if row < bonus:
                entry.extend([drafts[row - first]])
        for _ in drafts:
            entry.pop()
    return places


def freeze_edit(edit: Edit) -> Edit:
    """Return a copy of the edit with its current values: the counts of a penalty change later."""
    return replace(edit, counts=_cpu.Counts(edit.counts)) if isinstance(edit, Penalty) else edit
