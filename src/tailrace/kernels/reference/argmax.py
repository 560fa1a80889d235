"""Greedy argmax with the tie rule, in torch."""

from __future__ import annotations

import torch

from tailrace.kernels.status import EMPTY, INF, NAN, OK


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    top = logits.amax(-1, keepdim=True)  # NaN if the row has one
    ids = torch.where(logits == top, torch.arange(logits.shape[-1], device=logits.device), logits.shape[-1]).amin(-1)
    status = row_status(top.squeeze(-1))
    return torch.where(status == OK, ids, -1), status


def row_status(top: torch.Tensor) -> torch.Tensor:
    """int32 status of rows from their maxima [R] (NaN where the row holds one)."""
    status = torch.full(top.shape, OK, dtype=torch.int32, device=top.device)
    status[top == float("-inf")] = EMPTY
    status[top == float("inf")] = INF
    status[top.isnan()] = NAN
    return status
