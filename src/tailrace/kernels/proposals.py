"""The distributions q that a step's drafts were drawn from, as `Rows` holds them: one tensor for all rows, or one for
each request.

The CPU's kernels read each row where it lies; a GPU gets them side by side.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from tailrace.errors import ParameterError

# float32 [R, V], those of bonus rows not looked at; or of each request float32 [k, V], of its k drafts, None: they are
# one-hot
Proposals = torch.Tensor | tuple[torch.Tensor | None, ...]

TOLERANCE = (
    1e-3  # by which one may miss 1: softmax in float32 is within 1e-5, in bfloat16 it is not and must be normalised
)


def given(proposals: torch.Tensor | Sequence[torch.Tensor | None] | Any) -> Proposals:
    """As Rows holds them.

    Raises:
        ParameterError: they are neither a tensor nor a list of tensors.
    """
    if isinstance(proposals, torch.Tensor):
        return proposals
    if not isinstance(proposals, (list, tuple)) or not all(q is None or isinstance(q, torch.Tensor) for q in proposals):
        raise ParameterError(
            f"proposals must be a tensor or a list of tensors, one per request, got {shown(proposals)}", "proposals"
        )
    return tuple(proposals)


def of_request(proposals: Proposals | None, start: torch.Tensor, request: int) -> torch.Tensor | None:
    """[k, V]: those of a request's drafts; None: they are one-hot."""
    if proposals is None:
        return None
    if isinstance(proposals, tuple):
        return proposals[request]
    return proposals[int(start[request]) : int(start[request + 1]) - 1]


def each(proposals: Proposals, start: Sequence[int]) -> list[tuple[int, torch.Tensor]]:
    """The first row and the distributions of each request that has some; of one tensor, of all rows.

    Raises:
        ParameterError: there are not as many as there are requests.
    """
    if isinstance(proposals, torch.Tensor):
        return [(0, proposals)]
    if len(proposals) != len(start) - 1:
        raise ParameterError(f"proposals must be of {len(start) - 1} requests, got {len(proposals)}", "proposals")
    return [(first, q) for first, q in zip(start, proposals, strict=False) if q is not None]


def checked(proposals: Proposals, start: Sequence[int], vocab: int) -> list[tuple[int, torch.Tensor]]:
    """As `each`.

    Raises:
        ParameterError: one is not contiguous float32 on the CPU, or of another shape.
    """
    found = each(proposals, start)
    rows = {first: after - first - 1 for first, after in pairwise(start)}
    for first, q in found:
        count = start[-1] if isinstance(proposals, torch.Tensor) else rows[first]
        if q.shape != (count, vocab) or q.dtype != torch.float32 or not q.is_contiguous() or not q.is_cpu:
            raise ParameterError(
                f"proposals must be contiguous float32 [{count}, {vocab}] on the CPU, got {shown(q)}", "proposals"
            )
    return found


def addresses(proposals: Proposals, start: Sequence[int], vocab: int) -> array[int]:
    """int64 [R]: where each row's lies, 0: nowhere. `proposals` must outlive it.

    Raises:
        ParameterError: see `checked`.
    """
    found = array("q", bytes(8 * start[-1]))
    for first, q in checked(proposals, start, vocab):
        at, step = q.data_ptr(), 4 * vocab
        for row in range(q.shape[0]):
            found[first + row] = at + row * step
    return found


def side_by_side(proposals: Proposals, start: torch.Tensor, vocab: int) -> tuple[torch.Tensor, np.ndarray]:
    """float32 [R, V], and int64 [R], 1 where a row has one and 0 where what is in its place is not looked at.

    Raises:
        ParameterError: see `checked`.
    """
    starts = start.tolist()
    if isinstance(proposals, torch.Tensor):
        return proposals, np.ones(starts[-1], np.int64)
    rows, has = torch.empty((starts[-1], vocab)), np.zeros(starts[-1], np.int64)
    for first, q in checked(proposals, starts, vocab):
        rows[first : first + q.shape[0]] = q
        has[first : first + q.shape[0]] = 1
    return rows, has


def check_distributions(proposals: Proposals, draft: torch.Tensor, start: Sequence[int]) -> None:
    """Raise ParameterError unless those of drafts are distributions. Two reads of them at the memory's pace: `min`
    would take six times as long as `amin`, because it looks for the place too."""
    for first, q in each(proposals, start):
        count = draft.numel() if isinstance(proposals, torch.Tensor) else start[start.index(first) + 1] - first - 1
        if q.dim() != 2 or q.shape[0] != count or q.dtype is not torch.float32 or not q.is_cpu:
            raise ParameterError(f"proposals must be float32 [{count}, V] on the CPU, got {shown(q)}", "proposals")
        sums, least = q.sum(1), q.amin(1) if q.shape[1] else q.sum(1)
        good = (draft[first : first + count] < 0) | (((sums - 1.0).abs() <= TOLERANCE) & (least >= 0.0))
        if not bool(good.all()):
            row = int((~good).nonzero()[0])
            raise ParameterError(
                f"proposals must be probabilities that add up to 1 within {TOLERANCE:g}; row {first + row} adds "
                f"up to {float(sums[row])} "
                f"with {float(least[row])} as its least",
                "proposals",
            )


def shown(value: object) -> str:
    """As a message says it."""
    if value is None:
        return "none"
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
