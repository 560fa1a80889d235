"""A step's rows as the GPU's kernels read them: columns of one buffer (kernels/gpu/columns.py), so that one copy moves
all columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tailrace.kernels.gpu.columns import (
    BEFORE,
    COLUMNS,
    DRAFT,
    FORCED,
    MASK,
    NOISE_POSITION,
    NOISE_STREAM,
    POSITION,
    PROPOSAL,
    PROPOSED,
    RULE,
    SLOT,
    SOURCE,
)
from tailrace.kernels.gpu.step import even
from tailrace.kernels.rows import RULES, Rows
from tailrace.kernels.transfer import there

EXACT, BLOCK, REJECTION = RULES.index("exact"), RULES.index("block"), RULES.index("rejection")


class StepNumbers(NamedTuple):
    """The columns of a step on the device.

    - words: int64, the columns and the appended words.
    - padded: a column's length.
    - appended: index of the first appended word.
    """

    words: torch.Tensor
    padded: int
    appended: int


class ProposalColumns(NamedTuple):
    """Columns for drafts.

    - places: int64 [R], where the row's q is stored; 0: nowhere.
    - noise: each row's position and stream for the draw of a draft whose q is stored; None: the step draws no drafts.
    """

    places: np.ndarray | int = 0
    noise: Sequence[tuple[int, int]] | None = None


NO_PROPOSALS = ProposalColumns()


def step_numbers(
    rows: Rows,
    device: torch.device,
    *,
    proposals: ProposalColumns = NO_PROPOSALS,
    forced: Mapping[int, int] | None = None,
    greedy: Sequence[bool] = (),
    append: Sequence[int] | np.ndarray = (),
) -> StepNumbers:
    """Return the numbers of these rows.

    Args:
        forced: row → forced token.
        greedy: whether each row is greedy; needed if there are drafts.
        append: int64 [n], other numbers for the same copy.
    """
    n, starts = rows.num_rows, rows.num_requests + 1
    padded = -(-n // 16) * 16  # kernels are compiled for a multiple of 16
    first = COLUMNS * padded
    behind = first + even(starts)
    words = torch.empty(behind + len(append), dtype=torch.int64, pin_memory=device.type == "cuda")
    host = words.numpy()
    columns = host[:first].reshape(COLUMNS, padded)[:, :n]
    columns[SLOT.value], columns[SOURCE.value] = rows.slot.numpy(), rows.source.numpy()
    columns[POSITION.value], columns[DRAFT.value] = rows.position.numpy(), rows.draft.numpy()
    columns[RULE.value], columns[FORCED.value], columns[BEFORE.value] = EXACT, -1, 0
    columns[MASK.value] = -1 if rows.mask is None else rows.mask.numpy()
    columns[PROPOSAL.value] = proposals.places
    for row, token in (forced or {}).items():
        columns[FORCED.value, row] = token
    if proposals.noise is not None:
        columns[RULE.value] = PROPOSED.value
        columns[NOISE_POSITION.value], columns[NOISE_STREAM.value] = zip(*proposals.noise, strict=True)
    start = host[first : first + starts]
    start[:] = rows.start.numpy()
    host[behind:] = append
    if rows.width > 1:
        write_drafts(columns, rows, start, greedy)
    copied = there(words, device)
    if rows.position_there is not None:
        copied[POSITION.value * padded :][:n].copy_(rows.position_there)
    return StepNumbers(copied, padded, behind)


def write_drafts(columns: np.ndarray, rows: Rows, start: np.ndarray, greedy: Sequence[bool]) -> None:
    """Write the columns of drafts: the number of drafts before each row, and the rule of verification."""
    counts = np.diff(start)
    columns[BEFORE.value] = np.arange(rows.num_rows) - np.repeat(start[:-1], counts)
    if rows.rule is not None:
        rule = np.repeat(rows.rule.numpy().astype(np.int64), counts)
        # for one-hot drafts block verification equals rejection, row by row
        rule[(rule == BLOCK) & (np.repeat(columns[PROPOSAL.value, start[:-1]], counts) == 0)] = REJECTION
        rule[np.array(greedy) | (columns[FORCED.value] >= 0) | (np.repeat(counts, counts) == 1)] = EXACT
        columns[RULE.value] = rule
