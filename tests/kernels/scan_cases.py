"""Scans along sequences to compute in any parts, on any backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch

from tailrace.kernels import ChannelScan, Convolution, HeadScan, Walk
from tailrace.kernels.dispatch import find

Given = HeadScan | ChannelScan | Convolution
Part = tuple[int, int, int]  # sequence, first position, end
Operation = Callable[[Given, torch.Tensor, Walk], torch.Tensor]
SEQUENCES, ROWS = 3, 3


def make_numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def make_heads(tokens: int, dtype: torch.dtype, key_dim: int, value_dim: int, **options: Any) -> HeadScan:
    heads, groups, per_row = 4, 2, options.pop("per_row", False)
    decay = (tokens, heads, key_dim) if per_row else (tokens, heads)
    wide = make_numbers(tokens, 3 * groups * key_dim, dtype=dtype)  # rows of a wider tensor, as models have them
    query, key, _ = (part.unflatten(-1, (groups, key_dim)) for part in wide.chunk(3, -1))
    value = make_numbers(tokens, heads, value_dim, dtype=dtype)
    return HeadScan(query, key, value, -torch.rand(decay), torch.rand(tokens, heads), dtype, **options)


def make_channels(tokens: int, dtype: torch.dtype, channels: int, states: int) -> ChannelScan:
    x, b, c = (make_numbers(tokens, width, dtype=dtype) for width in (channels, states, states))
    return ChannelScan(x, b, c, torch.rand(tokens, channels), -torch.rand(channels, states))


def make_convolution(
    tokens: int, dtype: torch.dtype, channels: int, width: int, silu: bool = False, bias: bool = False
) -> Convolution:
    x, weight = make_numbers(tokens, channels, dtype=dtype), make_numbers(channels, width, dtype=dtype)
    return Convolution(x, weight, make_numbers(channels, dtype=dtype) if bias else None, silu)


DELTA = {"delta": True, "normalize": True}
MAKERS: dict[str, Callable[[int, torch.dtype], Given]] = {  # of a number of tokens and a dtype
    "delta": lambda *given: make_heads(*given, 32, 64, scale=32**-0.5, **DELTA),
    "delta per row": lambda *given: make_heads(*given, 32, 48, scale=0.3, per_row=True, **DELTA),
    "delta, odd": lambda *given: make_heads(*given, 7, 37, scale=0.5, **DELTA),
    "mamba2": lambda *given: make_heads(*given, 128, 64, skip=torch.randn(4)),
    "mamba2, odd": lambda *given: make_heads(*given, 5, 9),
    "mamba": lambda *given: make_channels(*given, 71, 16),
    "mamba, short": lambda *given: make_channels(*given, 32, 3),
    "convolution": lambda *given: make_convolution(*given, 530, 4, silu=True, bias=True),
    "convolution, plain": lambda *given: make_convolution(*given, 3, 3),
    "convolution, wide": lambda *given: make_convolution(*given, 9, 6, silu=True),
    "convolution, narrow": lambda *given: make_convolution(*given, 9, 1, bias=True),
}
OPERATION: dict[type, tuple[str, set[str]]] = {  # the name, and the fields that have no row per token
    HeadScan: ("scan_heads", {"skip"}),
    ChannelScan: ("scan_channels", {"rate"}),
    Convolution: ("convolve", {"weight", "bias"}),
}


def find_operation(given: Given, backend: str) -> Operation:
    return find(OPERATION[type(given)][0], backend)


def make_memory(given: Given) -> torch.Tensor:
    """Return memory of all slots. Its numbers must not matter."""
    if isinstance(given, HeadScan):
        shape, tensor = (given.value.shape[1], given.key.shape[2], given.value.shape[2]), given.decay
    elif isinstance(given, ChannelScan):
        shape, tensor = (given.rate.shape[1], given.rate.shape[0]), given.rate
    else:
        shape, tensor = (given.weight.shape[1] - 1, given.weight.shape[0]), given.x
    return torch.full((SEQUENCES * ROWS, *shape), float("nan"), dtype=tensor.dtype, device=tensor.device)


def take_rows(given: Given, rows: list[int]) -> Given:
    shared = OPERATION[type(given)][1]
    parts = {field.name: getattr(given, field.name) for field in fields(given)}
    tensors = {n: v[rows] for n, v in parts.items() if isinstance(v, torch.Tensor) and n not in shared}
    return replace(given, **tensors)


def move_given(given: Given, device: torch.device) -> Given:
    """Return the same numbers on the device. Tensors keep their strides."""
    parts = {field.name: getattr(given, field.name) for field in fields(given)}
    return replace(given, **{n: v.to(device) for n, v in parts.items() if isinstance(v, torch.Tensor)})


def make_walk(parts: list[Part], device: torch.device | str = "cpu") -> Walk:
    """Sequence i has slot SEQUENCES − 1 − i."""
    counts = torch.tensor([0] + [end - first for _, first, end in parts])
    ends = torch.tensor([end for _, _, end in parts])
    slots = torch.tensor([SEQUENCES - 1 - owner for owner, _, _ in parts])
    return Walk(counts.cumsum(0), ends, slots, ROWS, torch.device(device))


def compute_passes(
    given: Given, passes: list[list[Part]], length: int, run: Operation
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return each sequence's results over all passes, and the memory after them. length: tokens of a sequence."""
    memory, found = make_memory(given), [[] for _ in range(SEQUENCES)]
    for parts in passes:
        rows = [owner * length + j for owner, first, end in parts for j in range(first, end)]
        out = run(take_rows(given, rows), memory, make_walk(parts, memory.device))
        for (owner, _, _), part in zip(parts, out.split([end - first for _, first, end in parts]), strict=True):
            found[owner].append(part)
    return [torch.cat(parts) for parts in found if parts], memory
