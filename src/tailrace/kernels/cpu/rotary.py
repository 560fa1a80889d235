"""Rotary position embedding by csrc/elementwise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.types import CODES


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    tokens, heads, dim = x.shape
    if x.stride(2) != 1 or x.stride(1) != dim:
        raise ValueError("the heads of a token must lie side by side in memory")
    if cos.shape != sin.shape or cos.shape[0] != tokens or cos.shape[1] > dim or cos.dtype != x.dtype:
        raise ValueError(f"cos and sin must be [{tokens}, at most {dim}] of {x.dtype}, got {cos.dtype} {tuple(cos.shape)}")
    cos, sin = cos.contiguous(), sin.contiguous()
    _cpu.rope(
        x.data_ptr(), cos.data_ptr(), sin.data_ptr(), CODES[x.dtype], tokens, heads, dim, cos.shape[1], x.stride(0)
    )
