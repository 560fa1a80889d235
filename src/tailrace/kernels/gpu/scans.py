"""Scans along sequences in Triton: one recurrence per kind, as csrc/state has it.

A program takes a block of a state through all tokens of a sequence. The state stays in registers. A prompt, the rest of
a prompt, drafts and a decode step are the same loop, with more or fewer turns. So a token has the same bits however its
prompt is cut, whatever stands beside it and wherever it is resumed. Three facts are behind that:

- The compiled kernel follows from the layer's shape and dtypes alone. It assumes nothing about the inputs' addresses,
  strides and numbers (`do_not_specialize`). Only the memory of states is known to be aligned.
- The order of a sum follows from the layout of the block of states, which the kernel is compiled with. A warp holds
  whole columns, so sums need no barrier.
- Products and sums are rounded one by one, but for the fused multiply-adds that the code names. The compiler has no
  choice of its own in a copy of the loop's body.

A convolution needs no order of tokens: its sum has as many terms as the filter. Tokens are divided between programs.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple

import torch
import triton

from tailrace.kernels.gpu.convolution_kernel import convolve_rows
from tailrace.kernels.gpu.launcher import Launcher, special
from tailrace.kernels.gpu.noise import UNFUSED
from tailrace.kernels.gpu.recurrence_kernels import walk_channels, walk_heads
from tailrace.kernels.scans import (
    ChannelScan,
    Convolution,
    HeadScan,
    check_channels,
    check_convolution,
    check_heads,
)
from tailrace.kernels.walk import PlacedWalk, Walk

HELD, CHANNELS_HELD = 2048, 1024  # numbers of a state that a warp holds; of channels, whose decays take as many
MOST_HELD = 4096  # with more, registers spill
TOKENS, BLOCK = 16, 256  # of a program of a convolution


class StateTile(NamedTuple):
    """The block of states of a program: `rows` (a power of two) × `columns`, and the warps that hold it."""

    rows: int
    columns: int
    warps: int


@cache
def choose_tile(rows: int, columns: int, held: int) -> StateTile:
    """Return the block for states of this shape. It has whole columns."""
    padded = triton.next_power_of_2(rows)
    width = min(triton.next_power_of_2(columns), max(4, held // padded))
    return StateTile(padded, width, max(1, padded * width // MOST_HELD))


@cache
def get_launcher(kernel: Any, warps: int) -> Launcher:
    """Return the kernel's launcher for this number of warps."""
    return Launcher(kernel, num_warps=warps, num_stages=1, **UNFUSED)


def join_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x, or a copy, with the numbers of the last dimension side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def check_places(walk: Walk | PlacedWalk, tokens: int, memory: torch.Tensor) -> None:
    """Raise ValueError unless a kernel can walk along these tokens in this memory."""
    walk.check_call(tokens, memory, padded=True)
    if memory.data_ptr() % 16:
        raise ValueError("memory must begin at a multiple of 16 bytes: bits would differ")


def scan_heads(given: HeadScan, memory: torch.Tensor, walk: Walk | PlacedWalk) -> torch.Tensor:
    check_heads(given, memory)
    (tokens, heads, columns), (_, groups, rows) = given.value.shape, given.key.shape
    check_places(walk, tokens, memory)
    query, key, value = map(join_rows, (given.query, given.key, given.value))
    per_row = given.decay.dim() == 3
    decay, factor = join_rows(given.decay) if per_row else given.decay, given.factor
    skip = factor if given.skip is None else given.skip.contiguous()  # not read without it
    out = torch.empty((tokens, heads, columns), dtype=given.dtype, device=value.device)
    if out.numel() == 0 or rows == 0:
        return out.zero_()
    tile = choose_tile(rows, columns, HELD)
    how = (heads, heads // groups, rows, columns, given.delta, given.normalize, per_row, given.skip is not None)
    strides = (part.stride()[:2] for part in (query, key, value, decay, factor))
    with torch.cuda.device_of(out):
        get_launcher(walk_heads, tile.warps).launch(
            (len(walk.places.ends) * heads, triton.cdiv(columns, tile.columns)),
            (out.device, value.dtype, out.dtype, *how),
            *(query, key, value, decay, factor, skip, memory, out, *walk.places, walk.rows, len(memory)),
            *(number for pair in strides for number in pair),
            float(given.scale),
            *how,
            *tile[:2],
        )
    return out


def scan_channels(given: ChannelScan, memory: torch.Tensor, walk: Walk | PlacedWalk) -> torch.Tensor:
    check_channels(given, memory)
    (tokens, channels), states = given.x.shape, given.rate.shape[1]
    check_places(walk, tokens, memory)
    x, b, c, step = map(join_rows, (given.x, given.b, given.c, given.step))
    out = torch.empty((tokens, channels), dtype=torch.float32, device=x.device)
    if out.numel() == 0 or states == 0:
        return out.zero_()
    tile = choose_tile(states, channels, CHANNELS_HELD)
    with torch.cuda.device_of(out):
        get_launcher(walk_channels, tile.warps).launch(
            (len(walk.places.ends), triton.cdiv(channels, tile.columns)),
            (out.device, x.dtype, channels, states),
            *(x, b, c, step, given.rate, memory, out, *walk.places, walk.rows, len(memory)),
            *(part.stride(0) for part in (x, b, c, step)),
            *given.rate.stride(),
            *(channels, states, *tile[:2]),
        )
    return out


def convolve(given: Convolution, memory: torch.Tensor, walk: Walk | PlacedWalk) -> torch.Tensor:
    check_convolution(given, memory)
    (tokens, channels), width = given.x.shape, given.weight.shape[1]
    walk.check_call(tokens, memory, padded=True)
    x, weight = join_rows(given.x), join_rows(given.weight)
    bias = weight if given.bias is None else given.bias.contiguous()  # not read without it
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    if out.numel() == 0 or width == 0:
        return out.zero_()
    sequences = len(walk.places.ends)
    block = min(BLOCK, triton.next_power_of_2(channels))
    how = (channels, width, triton.next_power_of_2(max(1, width - 1)), given.bias is not None, given.silu)
    addresses = (part.data_ptr() for part in (x, weight, bias, memory))
    key: tuple[Hashable, ...] = (out.device, x.dtype, *how, *map(special, (x.stride(0), weight.stride(0), *addresses)))
    with torch.cuda.device_of(out):
        get_launcher(convolve_rows, 4).launch(
            (sequences + triton.cdiv(tokens, TOKENS), triton.cdiv(channels, block)),
            key,
            *(x, weight, bias, memory, out, *walk.places, walk.rows, len(memory)),
            *(tokens, sequences, sequences.bit_length(), x.stride(0), weight.stride(0)),
            *(*how, TOKENS, block),
        )
    return out
