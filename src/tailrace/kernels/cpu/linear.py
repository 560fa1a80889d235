"""Packed linear layers by csrc/model/linear.cpp."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.cpu.memory import lasting
from tailrace.kernels.cpu.quantized import Quantized, product
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.types import CODES


class Packed(NamedTuple):
    """Packed weights of an [N, K] matrix, in `data`. For bf16, K is even: a zero column is added to an odd K."""

    data: torch.Tensor
    bias: torch.Tensor | None
    n: int
    k: int


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Packed:
    refuse_odd(weight=weight, bias=bias)
    if weight.dim() != 2 or weight.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"weight must be [N, K] of bf16 or f32, got {weight.dtype} {tuple(weight.shape)}")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        raise ValueError(f"bias must be [{weight.shape[0]}] of {weight.dtype}, got {bias.dtype} {tuple(bias.shape)}")
    n, k = weight.shape
    if k % 2:
        weight = torch.nn.functional.pad(weight, (0, 1))
    weight = weight.detach().contiguous()
    code = CODES[weight.dtype]
    data = lasting(_cpu.packed_elements(code, n, weight.shape[1]), weight.dtype)
    # A model's code may make a weight in every pass, such as a router's in float32. So packing is recorded as well.
    launch(_cpu.pack_linear, weight.data_ptr(), code, n, weight.shape[1], data.data_ptr())
    return Packed(data, None if bias is None else bias.detach().clone(), n, k)


def linear(x: torch.Tensor, packed: Packed | Quantized) -> torch.Tensor:
    refuse_odd(x=x)
    if isinstance(packed, Quantized):
        return product(x, packed)
    if x.shape[-1:] != (packed.k,) or x.dtype != packed.data.dtype:
        raise ValueError(f"x must be [..., {packed.k}] of {packed.data.dtype}, got {x.dtype} {tuple(x.shape)}")
    k = packed.k
    if k % 2:
        x, k = torch.nn.functional.pad(x, (0, 1)), k + 1
    rows = x.reshape(-1, k)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    y = torch.empty((*x.shape[:-1], packed.n), dtype=x.dtype)
    bias = 0 if packed.bias is None else packed.bias.data_ptr()
    launch(
        _cpu.linear,
        rows.data_ptr(),
        CODES[x.dtype],
        rows.shape[0],
        k,
        rows.stride(0),
        packed.data.data_ptr(),
        bias,
        packed.n,
        y.data_ptr(),
    )
    return y
