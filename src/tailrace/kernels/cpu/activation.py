"""Gated activations by csrc/model/elementwise.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.types import CODES


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    refuse_odd(gate_up=gate_up)
    width = gate_up.shape[-1]
    if width % 2:
        raise ValueError(f"gate and up must have one width, got {width} in all")
    gate_up = gate_up.contiguous()
    y = torch.empty((*gate_up.shape[:-1], width // 2), dtype=gate_up.dtype)
    launch(_cpu.silu_mul, gate_up.data_ptr(), CODES[gate_up.dtype], gate_up.numel() // width, width // 2, y.data_ptr())
    return y
