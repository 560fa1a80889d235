"""Linear layers of weights quantized in blocks, by csrc/quantized/linear.cpp."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.cpu.memory import lasting
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.types import CODES

PANEL = 64  # outputs that are packed together


class Quantized(NamedTuple):
    """The packed blocks of an [N, K] matrix, uint8, in `data`. bias: [N] or None. ggml_type: GGUF's number of the
    type."""

    data: torch.Tensor
    bias: torch.Tensor | None
    n: int
    k: int
    ggml_type: int


def pack_quantized(raw: torch.Tensor, ggml_type: int, k: int, bias: torch.Tensor | None = None) -> Quantized:
    refuse_odd(raw=raw, bias=bias)
    if not _cpu.is_quantized(ggml_type):
        raise ValueError(f"there is no kernel for blocks of GGUF's type {ggml_type}")
    block, size = BLOCKS[ggml_type]
    if raw.dtype != torch.uint8 or raw.dim() != 2 or k % block or raw.shape[1] != k // block * size:
        wanted = f"[N, {k // block * size}], of blocks of {block} weights in {size} bytes"
        raise ValueError(f"blocks of [N, {k}] weights must be uint8 {wanted}, got {raw.dtype} {tuple(raw.shape)}")
    n = raw.shape[0]
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"bias must be [{n}], got {tuple(bias.shape)}")
    raw = raw.detach().contiguous()
    data = lasting(_cpu.quantized_bytes(ggml_type, n, k), torch.uint8)
    if not _cpu.pack_quantized(raw.data_ptr(), ggml_type, n, k, data.data_ptr()):
        raise ValueError("a block has a scale that is not finite")
    return Quantized(data, None if bias is None else bias.detach().clone(), n, k, ggml_type)


def joined(parts: list[Quantized]) -> list[Quantized]:
    """Return the same outputs, side by side, from fewer matrices.

    Neighbours of one type become one matrix if the outputs of the first one fill whole panels.
    """
    done: list[Quantized] = []
    for part in parts:
        last = done[-1] if done else None
        if (
            last is None
            or last.n % PANEL
            or (last.k, last.ggml_type, last.bias is None) != ((part.k, part.ggml_type, part.bias is None))
        ):
            done.append(part)
            continue
        bias = None if last.bias is None or part.bias is None else torch.cat([last.bias, part.bias])
        data = lasting(len(last.data) + len(part.data), torch.uint8)
        torch.cat([last.data, part.data], out=data)
        done[-1] = Quantized(data, bias, last.n + part.n, part.k, part.ggml_type)
    return done


def quantized_rows(packed: Quantized, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    refuse_odd(ids=ids)
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"dtype must be bf16 or f32, got {dtype}")
    flat = ids.reshape(-1).to(torch.int64).contiguous()
    launch(check_ids, flat.data_ptr(), len(flat), packed.n)
    out = torch.empty((*ids.shape, packed.k), dtype=dtype)
    launch(
        _cpu.quantized_rows,
        packed.data.data_ptr(),
        packed.ggml_type,
        packed.k,
        flat.data_ptr(),
        len(flat),
        CODES[dtype],
        out.data_ptr(),
    )
    return out


def check_ids(address: int, count: int, n: int) -> None:
    """Raise ValueError unless all ids are in [0, n): the kernel uses them as row numbers.

    The ids come by address, so that a recorded step can check the ids of its own inputs (runners/recorded.py).
    """
    ids = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))
    if count and not 0 <= ids.min() <= ids.max() < n:
        raise ValueError(f"ids must be in [0, {n}), got {ids.min()} … {ids.max()}")


def product(x: torch.Tensor, packed: Quantized) -> torch.Tensor:
    """Compute `kernels.linear` for quantized weights."""
    bias = packed.bias
    if x.shape[-1:] != (packed.k,) or (bias is not None and bias.dtype != x.dtype):
        raise ValueError(f"x must be [..., {packed.k}] with the bias's dtype, got {x.dtype} {tuple(x.shape)}")
    rows = x.reshape(-1, packed.k)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    y = torch.empty((*x.shape[:-1], packed.n), dtype=x.dtype)
    launch(
        _cpu.quantized_linear,
        rows.data_ptr(),
        CODES[x.dtype],
        rows.shape[0],
        packed.k,
        rows.stride(0),
        packed.data.data_ptr(),
        packed.ggml_type,
        0 if bias is None else bias.data_ptr(),
        packed.n,
        y.data_ptr(),
    )
    return y


# GGUF's number of a type → number of weights and bytes of one block
BLOCKS: dict[int, tuple[int, int]] = {number: (block, size) for number, block, size in _cpu.quantized_types()}
