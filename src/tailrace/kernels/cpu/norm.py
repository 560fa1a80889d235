"""RMS norm by csrc/elementwise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.types import CODES


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False) -> torch.Tensor:
    dim = x.shape[-1]
    if weight.shape != (dim,) or weight.dtype != x.dtype:
        raise ValueError(f"weight must be [{dim}] of {x.dtype}, got {weight.dtype} {tuple(weight.shape)}")
    flat = x.reshape(-1, dim)
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype)
    _cpu.rms_norm(
        flat.data_ptr(), weight.data_ptr(), CODES[x.dtype], flat.shape[0], dim, flat.stride(0), eps, plus_one,
        y.data_ptr(),
    )  # fmt: skip
    return y


def add_rms_norm(residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    dim = residual.shape[-1]
    if delta.shape != residual.shape or not residual.is_contiguous() or weight.shape != (dim,):
        raise ValueError("residual and delta must be contiguous and of one shape, weight [dim]")
    delta = delta.contiguous()
    y = torch.empty_like(residual)
    _cpu.add_rms_norm(
        residual.data_ptr(), delta.data_ptr(), weight.data_ptr(), CODES[residual.dtype], residual.numel() // dim, dim,
        eps, y.data_ptr(),
    )  # fmt: skip
    return y
