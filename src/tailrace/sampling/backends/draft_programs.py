"""Drafts of slots whose edits move from token to token (bad words, DRY, windows, forced tokens, …): each row gets a
program of its own, written as if the drafts before it had been said. The kernels then verify them as they do all
others.

Slots whose edits stay are not touched: the kernels themselves add drafts to the counts of a penalty.
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
    """Each row's place in `programs`, int64 [R]: its slot, or where its own program now lies, until the next call.

    Args:
        requests: those whose rows get one. Their slots are the same afterwards.
    """
    places = rows.slot.clone()
    programs.make_room(rows.num_rows)
    for i in requests:
        first, bonus = int(rows.start[i]), int(rows.start[i + 1]) - 1
        index = int(rows.slot[first])
        entry, drafts = slots[index], rows.draft[first:bonus].tolist()
        entry.updates.clear()  # of a step before this one: drafts update no state here
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
    """The edit as it is now: the counts of a penalty go on changing."""
    return replace(edit, counts=_cpu.Counts(edit.counts)) if isinstance(edit, Penalty) else edit
