"""The tensors of scans along sequences, as records, and their checks. kernels/__init__.py has the contracts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tailrace.kernels.plain import refuse_odd


@dataclass(frozen=True, slots=True)
class HeadScan:
    """The input of `scan_heads`: T tokens, H heads, each with a state of K rows and V columns.

    - query, key: [T, G, K]; head h reads row h // (H / G). value: [T, H, V]. All have one dtype.
    - decay: float32, the logarithm of what remains of a state: [T, H], or [T, H, K] for a decay per row.
    - factor: float32 [T, H], multiplies the update of the state.
    - scale: multiplies the query.
    - delta: subtract from the value what the decayed state has for the key (the delta rule).
    - normalize: scale query and key to length 1 first.
    - skip: float32 [H]; the result has skip · value added to it.
    - dtype: of the result.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    factor: torch.Tensor
    dtype: torch.dtype
    scale: float = 1.0
    delta: bool = False
    normalize: bool = False
    skip: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ChannelScan:
    """The input of `scan_channels`: T tokens, C channels, each with a state of S numbers.

    - x: [T, C]. b, c: [T, S]. All have one dtype.
    - step: float32 [T, C]. rate: float32 [C, S].
    """

    x: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    step: torch.Tensor
    rate: torch.Tensor


@dataclass(frozen=True, slots=True)
class Convolution:
    """The input of `convolve`: T tokens, C channels.

    - x: [T, C]. weight: [C, W]. bias: [C] or None. All have one dtype.
    - silu: apply SiLU to the rounded result.
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    silu: bool = False


def check_tensor(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ValueError unless the tensor has this shape and dtype."""
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} {shape}, got {tensor.dtype} {tuple(tensor.shape)}")


def check_heads(given: HeadScan, memory: torch.Tensor) -> None:
    """Raise ValueError unless the tensors fit together."""
    refuse_odd(query=given.query, key=given.key, value=given.value, decay=given.decay, factor=given.factor)
    refuse_odd(skip=given.skip, memory=memory)
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


def check_channels(given: ChannelScan, memory: torch.Tensor) -> None:
    """Raise ValueError unless the tensors fit together."""
    refuse_odd(x=given.x, b=given.b, c=given.c, step=given.step, rate=given.rate, memory=memory)
    (tokens, channels), states = given.x.shape, given.rate.shape[-1]
    check_tensor("b", given.b, (tokens, states), given.x.dtype)
    check_tensor("c", given.c, (tokens, states), given.x.dtype)
    check_tensor("step", given.step, (tokens, channels), torch.float32)
    check_tensor("rate", given.rate, (channels, states), torch.float32)
    check_tensor("memory", memory, (len(memory), states, channels), torch.float32)


def check_convolution(given: Convolution, memory: torch.Tensor) -> None:
    """Raise ValueError unless the tensors fit together."""
    refuse_odd(x=given.x, weight=given.weight, bias=given.bias, memory=memory)
    channels, width = given.x.shape[1], given.weight.shape[-1]
    check_tensor("weight", given.weight, (channels, width), given.x.dtype)
    if given.bias is not None:
        check_tensor("bias", given.bias, (channels,), given.x.dtype)
    check_tensor("memory", memory, (len(memory), width - 1, channels), given.x.dtype)
