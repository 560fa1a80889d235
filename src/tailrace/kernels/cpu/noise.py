"""Noise by csrc/sample/noise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu


def gumbel(key: int, position: int, token_ids: torch.Tensor, stream: int) -> torch.Tensor:
    ids = token_ids.numpy().astype("uint32")
    out = torch.empty(ids.shape, dtype=torch.float32)
    _cpu.gumbel(key, position, stream, ids.ctypes.data, ids.size, out.data_ptr())
    return out


def words(key: int, position: int, stream: int, token_ids: torch.Tensor) -> torch.Tensor:
    ids = token_ids.numpy().astype("uint32")
    out = torch.empty(ids.shape, dtype=torch.int32)
    _cpu.words(key, position, stream, ids.ctypes.data, ids.size, out.data_ptr())
    return out.to(torch.int64) & 0xFFFFFFFF


def uniform(key: int, position: int, stream: int) -> float:
    return _cpu.uniform(key, position, stream)
