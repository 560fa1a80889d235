"""A step's rows as the GPU's kernels read them: columns of one buffer (kernels/gpu/columns.py), so that one copy brings
all of them."""

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
    """words: int64 on the device, the columns and what was appended to them. padded: a column's length. appended: where
    that begins."""

    words: torch.Tensor
    padded: int
    appended: int


class ProposalColumns(NamedTuple):
    """places: int64 [R], where each row's q lies, 0: nowhere. noise: of each row the position and the stream of what a
    draft is drawn with, whose q goes to its place; None: no drafts are to be drawn."""

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
    """The numbers of these rows.

    Args:
        forced: of rows whose token must come, that token. greedy: of each row, where there are drafts. append: int64
            [n], anything else that this copy should bring.
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
    return StepNumbers(there(words, device), padded, behind)


def write_drafts(columns: np.ndarray, rows: Rows, start: np.ndarray, greedy: Sequence[bool]) -> None:
    """Fill in what drafts bring: how many come before each row, and by which rule they are verified."""
    counts = np.diff(start)
    columns[BEFORE.value] = np.arange(rows.num_rows) - np.repeat(start[:-1], counts)
    if rows.rule is not None:
        rule = np.repeat(rows.rule.numpy().astype(np.int64), counts)
        # of one-hot drafts block verification is rejection, row by row
        rule[(rule == BLOCK) & (np.repeat(columns[PROPOSAL.value, start[:-1]], counts) == 0)] = REJECTION
        rule[np.array(greedy) | (columns[FORCED.value] >= 0) | (np.repeat(counts, counts) == 1)] = EXACT
        columns[RULE.value] = rule
