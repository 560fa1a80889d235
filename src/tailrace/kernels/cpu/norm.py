"""RMS norm by csrc/model/elementwise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.types import CODES


def check_weight(weight: torch.Tensor, x: torch.Tensor) -> None:
    """Raise ValueError unless weight is contiguous [dim] of x's dtype: the kernel reads it by address."""
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype or not weight.is_contiguous():
        raise ValueError(
            f"weight must be contiguous [{x.shape[-1]}] of {x.dtype}, got {weight.dtype} {tuple(weight.shape)} "
            f"with strides {weight.stride()}"
        )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False) -> torch.Tensor:
    refuse_odd(x=x, weight=weight)
    dim = x.shape[-1]
    check_weight(weight, x)
    flat = x.reshape(-1, dim)
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype)
    launch(
        _cpu.rms_norm,
        flat.data_ptr(),
        weight.data_ptr(),
        CODES[x.dtype],
        flat.shape[0],
        dim,
        flat.stride(0),
        eps,
        plus_one,
        y.data_ptr(),
    )
    return y


def add_rms_norm(residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    refuse_odd(residual=residual, delta=delta, weight=weight)
    dim = residual.shape[-1]
    check_weight(weight, residual)
    if delta.shape != residual.shape or delta.dtype != residual.dtype or not residual.is_contiguous():
        raise ValueError(
            f"residual must be contiguous and delta like it, got {residual.dtype} {tuple(residual.shape)} with strides "
            f"{residual.stride()} and {delta.dtype} {tuple(delta.shape)}"
        )
    delta = delta.contiguous()
    y = torch.empty_like(residual)
    launch(
        _cpu.add_rms_norm,
        residual.data_ptr(),
        delta.data_ptr(),
        weight.data_ptr(),
        CODES[residual.dtype],
        residual.numel() // dim,
        dim,
        eps,
        y.data_ptr(),
    )
    return y
