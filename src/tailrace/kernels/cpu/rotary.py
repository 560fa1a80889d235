"""Rotary position embedding by csrc/model/elementwise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.types import CODES


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    refuse_odd(x=x, cos=cos, sin=sin)
    tokens, heads, dim = x.shape
    if x.stride(2) != 1 or (heads > 1 and x.stride(1) != dim):
        raise ValueError("the heads of a token must lie side by side in memory")
    fits = cos.dim() == 2 and cos.shape[0] == tokens and cos.shape[1] <= dim and cos.shape[1] % 2 == 0
    if not fits or cos.shape != sin.shape or cos.dtype != x.dtype or sin.dtype != x.dtype:
        raise ValueError(
            f"cos and sin must be [{tokens}, an even number of at most {dim}] of {x.dtype}, "
            f"got {cos.dtype} {tuple(cos.shape)} and {sin.dtype} {tuple(sin.shape)}"
        )
    cos, sin = cos.contiguous(), sin.contiguous()
    launch(
        _cpu.rope,
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        CODES[x.dtype],
        tokens,
        heads,
        dim,
        cos.shape[1],
        x.stride(0),
    )
