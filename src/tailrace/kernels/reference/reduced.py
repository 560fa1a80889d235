"""Sums over the entries of a row, in torch."""

from __future__ import annotations

import torch


def sum_rows(x: torch.Tensor, divisor: float = 1.0, squared: bool = False) -> torch.Tensor:
    wide = x.float()
    return ((wide * wide if squared else wide).sum(-1) / divisor).to(x.dtype)
