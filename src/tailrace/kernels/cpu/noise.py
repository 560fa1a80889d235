"""Noise by csrc/noise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu


def gumbel(key: int, position: int, token_ids: torch.Tensor, stream: int) -> torch.Tensor:
    ids = token_ids.numpy().astype("uint32")
    out = torch.empty(ids.shape, dtype=torch.float32)
    _cpu.gumbel(key, position, stream, ids.ctypes.data, ids.size, out.data_ptr())
    return out


def uniform(key: int, position: int, stream: int) -> float:
    return _cpu.uniform(key, position, stream)
