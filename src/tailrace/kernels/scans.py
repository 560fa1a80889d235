"""The tensors of scans along sequences, as records. kernels/__init__.py has the contracts."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
