"""Gumbel noise by csrc/noise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu


def gumbel(key: int, position: int, token_ids: torch.Tensor, stream: int) -> torch.Tensor:
    ids = token_ids.contiguous()
    out = torch.empty(ids.shape, dtype=torch.float32)
    _cpu.gumbel(key, position, stream, ids.data_ptr(), ids.numel(), out.data_ptr())
    return out
