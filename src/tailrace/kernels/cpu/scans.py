"""Scans along sequences by csrc/state."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.scans import ChannelScan, Convolution, HeadScan
from tailrace.kernels.types import CODES
from tailrace.kernels.walk import Walk

Rows = tuple[int, int, int]


def check_tensor(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ValueError unless the tensor has this shape and dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} {shape}, got {tensor.dtype} {tuple(tensor.shape)}")


def join_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if the numbers of each token are contiguous, else a copy."""
    return tensor if tensor.numel() == 0 or tensor[0].is_contiguous() else tensor.contiguous()


def describe_rows(tensor: torch.Tensor) -> Rows:
    """Return the address, the dtype's code and the numbers between tokens."""
    return tensor.data_ptr(), CODES[tensor.dtype], tensor.stride(0)


def describe_ring(walk: Walk, tokens: int, memory: torch.Tensor) -> tuple[int, int, int, int, int]:
    """Return the arguments that say where the states are, after a check of the memory's entries.

    Raises:
        ValueError: the walk has another number of tokens, two of its sequences have one slot, or the memory has too
            few entries.
    """
    if int(walk.starts[-1]) != tokens or not walk.goes_on:
        raise ValueError(f"the walk must have {tokens} tokens, got query_start {walk.starts.tolist()}")
    if not walk.has_own_slots:
        raise ValueError(f"each sequence must have a slot of its own, got {walk.slots.tolist()}")
    walk.check_memory(memory)
    return (
        walk.starts.ctypes.data,
        walk.first.ctypes.data,
        walk.slots.ctypes.data,
        len(walk.counts),
        walk.rows,
    )


def check_heads(given: HeadScan, memory: torch.Tensor) -> None:
    """Raise ValueError unless the tensors fit together."""
    refuse_odd(query=given.query, key=given.key, value=given.value, decay=given.decay, factor=given.factor)
    refuse_odd(skip=given.skip, memory=memory)
    if given.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype must be float32 or bfloat16, got {given.dtype}")
    (tokens, heads, columns), (_, groups, rows) = given.value.shape, given.key.shape
    if groups == 0 or heads % groups:
        raise ValueError(f"value has {heads} heads, which is no multiple of the key's {groups}")
    check_tensor("query", given.query, (tokens, groups, rows), given.value.dtype)
    check_tensor("key", given.key, (tokens, groups, rows), given.value.dtype)
    decay = (tokens, heads, rows) if given.decay.dim() == 3 else (tokens, heads)
    check_tensor("decay", given.decay, decay, torch.float32)
    check_tensor("factor", given.factor, (tokens, heads), torch.float32)
    check_tensor("memory", memory, (len(memory), heads, rows, columns), torch.float32)
    if given.skip is not None:
        check_tensor("skip", given.skip, (heads,), torch.float32)


def scan_heads(given: HeadScan, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
    check_heads(given, memory)
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
    refuse_odd(x=given.x, b=given.b, c=given.c, step=given.step, rate=given.rate, memory=memory)
    (tokens, channels), states = given.x.shape, given.rate.shape[-1]
    check_tensor("b", given.b, (tokens, states), given.x.dtype)
    check_tensor("c", given.c, (tokens, states), given.x.dtype)
    check_tensor("step", given.step, (tokens, channels), torch.float32)
    check_tensor("rate", given.rate, (channels, states), torch.float32)
    check_tensor("memory", memory, (len(memory), states, channels), torch.float32)
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
    refuse_odd(x=given.x, weight=given.weight, bias=given.bias, memory=memory)
    (tokens, channels), width = given.x.shape, given.weight.shape[-1]
    check_tensor("weight", given.weight, (channels, width), given.x.dtype)
    if given.bias is not None:
        check_tensor("bias", given.bias, (channels,), given.x.dtype)
    check_tensor("memory", memory, (len(memory), width - 1, channels), given.x.dtype)
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
