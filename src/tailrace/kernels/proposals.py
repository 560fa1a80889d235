"""The distributions q that a step's drafts were drawn from, as `Rows` holds them: one tensor for all rows, or one per
request.

Kernels read each row where it lies. Rows on the CPU are copied to a GPU that needs them.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch

from tailrace.errors import ParameterError
from tailrace.kernels.plain import is_plain, make_plain, name_oddity
from tailrace.kernels.transfer import there

# float32 [R, V], where bonus rows are not read; or one entry per request: float32 [k, V] for its k drafts, or None if
# they are one-hot.
Proposals = torch.Tensor | tuple[torch.Tensor | None, ...]

CPU = torch.device("cpu")
# The error of a distribution's sum. softmax in float32 stays within 1e-5; in bfloat16 it must be normalised again.
TOLERANCE = 1e-3


class Proposed(NamedTuple):
    """Drafts of R rows. token_ids: int64 [R], −1 where no token is left. status: int32 [R], as in KernelOutput."""

    token_ids: torch.Tensor
    status: torch.Tensor


class ProposalMemory(Protocol):
    """Memory for the q of some drafts. q: float32 [count, V], contiguous. A row's contents are undefined until it is
    written."""

    q: torch.Tensor

    def write(self, row: int, q: torch.Tensor) -> None:
        """Set the row to q [V]."""
        ...


class ProposalTensor:
    """A `ProposalMemory` on any device."""

    def __init__(self, count: int, vocab: int, device: torch.device) -> None:
        self.q = torch.empty((count, vocab), dtype=torch.float32, device=device)

    def address(self, row: int) -> int:
        """Return the address of the row."""
        return self.q.data_ptr() + row * self.q.shape[1] * 4

    def write(self, row: int, q: torch.Tensor) -> None:
        """Set the row to q [V]."""
        self.q[row] = q


def given(proposals: torch.Tensor | Sequence[torch.Tensor | None] | Any) -> Proposals:
    """Return the proposals as Rows holds them.

    Raises:
        ParameterError: they are neither a tensor nor a list of tensors, or a tensor is not plain (plain.py).
    """
    if isinstance(proposals, torch.Tensor):
        return make_plain("proposals", proposals)
    if not isinstance(proposals, (list, tuple)) or not all(q is None or isinstance(q, torch.Tensor) for q in proposals):
        raise ParameterError(
            f"proposals must be a tensor or a list of tensors, one per request, got {shown(proposals)}", "proposals"
        )
    return tuple(None if q is None else make_plain("proposals", q) for q in proposals)


def of_request(proposals: Proposals | None, start: torch.Tensor, request: int) -> torch.Tensor | None:
    """Return the distributions [k, V] of a request's drafts; None: they are one-hot."""
    if proposals is None:
        return None
    if isinstance(proposals, tuple):
        return proposals[request]
    return proposals[int(start[request]) : int(start[request + 1]) - 1]


def each(proposals: Proposals, start: Sequence[int]) -> list[tuple[int, torch.Tensor]]:
    """Return the first row and the distributions of each request that has some. A tensor for all rows is one entry.

    Raises:
        ParameterError: the number of entries is not the number of requests.
    """
    if isinstance(proposals, torch.Tensor):
        return [(0, proposals)]
    if len(proposals) != len(start) - 1:
        raise ParameterError(f"proposals must be of {len(start) - 1} requests, got {len(proposals)}", "proposals")
    return [(first, q) for first, q in zip(start, proposals, strict=False) if q is not None]


def checked(
    proposals: Proposals, start: Sequence[int], vocab: int, devices: Collection[str] = ("cpu",)
) -> list[tuple[int, torch.Tensor]]:
    """Check the proposals and return them as `each` does.

    Raises:
        ParameterError: one is not contiguous float32 on one of these devices, or has another shape.
    """
    found = each(proposals, start)
    rows = {first: after - first - 1 for first, after in pairwise(start)}
    for first, q in found:
        count = start[-1] if isinstance(proposals, torch.Tensor) else rows[first]
        fits = q.shape == (count, vocab) and q.dtype == torch.float32 and q.is_contiguous()
        if not fits or q.device.type not in devices:
            raise ParameterError(
                f"proposals must be contiguous float32 [{count}, {vocab}] on {' or '.join(devices)}, got {shown(q)}",
                "proposals",
            )
    return found


def addresses(
    proposals: Proposals, start: Sequence[int], vocab: int, device: torch.device = CPU
) -> tuple[array[int], list[torch.Tensor]]:
    """Return the address of each row, int64 [R], and the tensors that must outlive the addresses.

    The address is 0 for rows without a distribution. Tensors elsewhere are copied to the device.

    Raises:
        ParameterError: see `checked`.
    """
    found, held = array("q", bytes(8 * start[-1])), []
    for first, q in checked(proposals, start, vocab, sorted({"cpu", device.type})):
        held.append(here := there(q, device))
        at, step = here.data_ptr(), 4 * vocab
        for row in range(q.shape[0]):
            found[first + row] = at + row * step
    return found, held


def check_distributions(proposals: Proposals, draft: torch.Tensor, start: Sequence[int]) -> None:
    """Raise ParameterError unless the proposals of drafts are distributions.

    They are read twice, at the speed of memory. `min` would take six times as long as `amin`, because it also finds the
    place.
    """
    for first, q in each(proposals, start):
        count = draft.numel() if isinstance(proposals, torch.Tensor) else start[start.index(first) + 1] - first - 1
        if q.dim() != 2 or q.shape[0] != count or q.dtype is not torch.float32 or q.is_meta:
            raise ParameterError(f"proposals must be float32 [{count}, V], got {shown(q)}", "proposals")
        sums, least = q.sum(1), q.amin(1) if q.shape[1] else q.sum(1)
        good = (draft[first : first + count] < 0).to(q.device) | (((sums - 1.0).abs() <= TOLERANCE) & (least >= 0.0))
        if not bool(good.all()):
            row = int((~good).nonzero()[0])
            raise ParameterError(
                f"proposals must be probabilities that add up to 1 within {TOLERANCE:g}; row {first + row} adds "
                f"up to {float(sums[row])} "
                f"with {float(least[row])} as its least",
                "proposals",
            )


def shown(value: object) -> str:
    """Return the form of a value for an error message."""
    if value is None:
        return "none"
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if oddity := name_oddity(value):
        return oddity
    lazy = "" if is_plain(value) else ", negated lazily"
    return f"{value.dtype} {tuple(value.shape)}{lazy}"
