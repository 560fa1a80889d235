"""Memory of weights."""

from __future__ import annotations

import torch

from tailrace import _cpu


def lasting(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor [elements], in large pages where the system has them (csrc/pages.cpp)."""
    found = torch.empty(elements, dtype=dtype)
    _cpu.want_large_pages(found.data_ptr(), found.nbytes)
    return found
