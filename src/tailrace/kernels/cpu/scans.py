"""Scans along sequences by csrc/state."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.scans import (
    ChannelScan,
    Convolution,
    HeadScan,
    check_channels,
    check_convolution,
    check_heads,
)
from tailrace.kernels.types import CODES
from tailrace.kernels.walk import Walk

Rows = tuple[int, int, int]


def join_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if the numbers of each token are contiguous, else a copy."""
    return tensor if tensor.numel() == 0 or tensor[0].is_contiguous() else tensor.contiguous()


def describe_rows(tensor: torch.Tensor) -> Rows:
    """Return the address, the dtype's code and the numbers between tokens."""
    return tensor.data_ptr(), CODES[tensor.dtype], tensor.stride(0)


def describe_ring(walk: Walk, tokens: int, memory: torch.Tensor) -> tuple[int, int, int, int, int]:
    """Return the arguments that say where the states are, after a check.

    Raises:
        ValueError: see Walk.check_call.
    """
    walk.check_call(tokens, memory)
    return (
        walk.starts.ctypes.data,
        walk.first.ctypes.data,
        walk.slots.ctypes.data,
        len(walk.counts),
        walk.rows,
    )


def scan_heads(given: HeadScan, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
    check_heads(given, memory)
    if given.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype must be float32 or bfloat16, got {given.dtype}")
    (tokens, heads, columns), (_, groups, rows) = given.value.shape, given.key.shape
    q, k, v = map(join_rows, (given.query, given.key, given.value))
    decay, factor = given.decay.contiguous(), given.factor.contiguous()
    skip = None if given.skip is None else given.skip.contiguous()
    out = torch.empty((tokens, heads, columns), dtype=given.dtype)
    launch(
        _cpu.scan_heads,
        describe_rows(q),
        describe_rows(k),
        describe_rows(v),
        decay.data_ptr(),
        factor.data_ptr(),
        0 if skip is None else skip.data_ptr(),
        heads,
        groups,
        rows,
        columns,
        given.scale,
        given.delta,
        given.normalize,
        decay.dim() == 3,
        memory.data_ptr(),
        out.data_ptr(),
        CODES[given.dtype],
        describe_ring(walk, tokens, memory),
    )
    return out


def scan_channels(given: ChannelScan, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
    check_channels(given, memory)
    (tokens, channels), states = given.x.shape, given.rate.shape[-1]
    x, b, c = map(join_rows, (given.x, given.b, given.c))
    step, rate = given.step.contiguous(), given.rate.T.contiguous()
    out = torch.empty((tokens, channels), dtype=torch.float32)
    launch(
        _cpu.scan_channels,
        describe_rows(x),
        describe_rows(b),
        describe_rows(c),
        step.data_ptr(),
        rate.data_ptr(),
        channels,
        states,
        memory.data_ptr(),
        out.data_ptr(),
        describe_ring(walk, tokens, memory),
    )
    return out


def convolve(given: Convolution, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
    check_convolution(given, memory)
    (tokens, channels), width = given.x.shape, given.weight.shape[-1]
    x, weight = join_rows(given.x), given.weight.contiguous()
    bias = None if given.bias is None else given.bias.contiguous()
    out = torch.empty((tokens, channels), dtype=given.x.dtype)
    launch(
        _cpu.convolve,
        describe_rows(x),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        channels,
        width,
        given.silu,
        memory.data_ptr(),
        out.data_ptr(),
        describe_ring(walk, tokens, memory),
    )
    return out
