"""A linear layer per group of rows, such as an expert's, by csrc/model/linear.cpp and csrc/quantized/linear.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.cpu.linear import Packed, pack_linear
from tailrace.kernels.cpu.quantized import Quantized
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.types import CODES

DENSE = -1  # instead of the number of a type of blocks


class PackedGroups(NamedTuple):
    """Packed layers [N, K] of all groups, and the addresses of their weights and biases, int64 [groups]. biases: None
    without biases."""

    layers: tuple[Packed | Quantized, ...]
    weights: torch.Tensor
    biases: torch.Tensor | None


def group_packed(layers: Sequence[Packed | Quantized]) -> PackedGroups:
    if len({describe_layer(layer) for layer in layers}) != 1:
        raise ValueError("all groups must have layers of one shape and type, and there must be a group")
    weights = torch.tensor([layer.data.data_ptr() for layer in layers])
    biases = [layer.bias.data_ptr() for layer in layers if layer.bias is not None]
    return PackedGroups(tuple(layers), weights, torch.tensor(biases) if biases else None)


def describe_layer(layer: Packed | Quantized) -> tuple[object, ...]:
    """Return what all layers of a group have in common."""
    kind = layer.ggml_type if isinstance(layer, Quantized) else layer.data.dtype
    return layer.n, layer.k, kind, None if layer.bias is None else layer.bias.dtype


def pack_grouped(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedGroups:
    refuse_odd(weight=weight, bias=bias)
    if weight.dim() != 3 or not len(weight) or (bias is not None and bias.shape != weight.shape[:2]):
        shapes = f"{tuple(weight.shape)} and {None if bias is None else tuple(bias.shape)}"
        raise ValueError(f"weight must be [groups, N, K] and bias [groups, N], got {shapes}")
    biases = [None] * len(weight) if bias is None else bias.detach().unbind()
    return group_packed([pack_linear(own, own_bias) for own, own_bias in zip(weight.detach(), biases, strict=True)])


def grouped_linear(x: torch.Tensor, packed: PackedGroups, starts: torch.Tensor) -> torch.Tensor:
    refuse_odd(x=x, starts=starts)
    layer, groups = packed.layers[0], len(packed.layers)
    quantized = isinstance(layer, Quantized)
    numbers = layer.bias if quantized else layer.data
    dtype = x.dtype if numbers is None else numbers.dtype
    if x.dim() != 2 or x.shape[1] != layer.k or x.dtype != dtype:
        raise ValueError(f"x must be [S, {layer.k}] of {dtype}, got {x.dtype} {tuple(x.shape)}")
    if starts.shape != (groups + 1,) or starts.dtype != torch.int64:
        raise ValueError(f"starts must be int64 [{groups + 1}], got {starts.dtype} {tuple(starts.shape)}")
    k = layer.k
    if k % 2 and not quantized:
        x, k = torch.nn.functional.pad(x, (0, 1)), k + 1
    if x.stride(1) != 1:
        x = x.contiguous()
    starts = starts.contiguous()
    y = torch.empty((x.shape[0], layer.n), dtype=x.dtype)
    launch(
        _cpu.grouped_linear,
        x.data_ptr(),
        CODES[x.dtype],
        x.shape[0],
        k,
        x.stride(0),
        starts.data_ptr(),
        groups,
        packed.weights.data_ptr(),
        0 if packed.biases is None else packed.biases.data_ptr(),
        layer.n,
        layer.ggml_type if quantized else DENSE,
        y.data_ptr(),
    )
    return y
