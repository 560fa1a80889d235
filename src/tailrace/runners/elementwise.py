"""Sigmoid, SiLU, softplus and GELU whose bits don't depend on where an element lies.

torch computes these on a CPU in vectors, and the last elements of a tensor, or of a thread's share of it, which fill no
vector, by another routine. So a token's bits would depend on how many tokens stand beside it. exp, log1p, erf, tanh and
plain arithmetic go one way for all elements: what is made of them is the same everywhere (tests/runners/
test_elementwise.py). Modules that runners/fuse.py replaces need none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + e⁻ˣ)."""
    return (1 / (1 + torch.exp(-x.float()))).to(x.dtype)


def silu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """x · sigmoid(x). inplace is not needed: nobody else sees x."""
    wide = x.float()
    return (wide / (1 + torch.exp(-wide))).to(x.dtype)


def softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    """log(1 + e^(βx)) / β; x itself beyond the threshold of βx."""
    scaled = x.float() * beta
    return torch.where(scaled > threshold, x.float(), torch.log1p(torch.exp(scaled)) / beta).to(x.dtype)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """x · Φ(x), or its approximation by tanh (arXiv 1606.08415)."""
    wide = x.float()
    if approximate == "tanh":
        inner = torch.tanh((2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide * wide * wide))
    else:
        inner = torch.erf(wide * 0.5**0.5)
    return (0.5 * wide * (1 + inner)).to(x.dtype)


REPLACED: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.sigmoid: sigmoid,
    torch.Tensor.sigmoid: sigmoid,
    F.silu: silu,
    F.softplus: softplus,
    F.gelu: gelu,
}


class PlaceIndependent(TorchFunctionMode):
    """While it is on, a model's code calls the functions above in the place of torch's. used: it did."""

    used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = REPLACED.get(func)
        if ours is None:
            return func(*args, **(kwargs or {}))
        self.used = True
        return ours(*args, **(kwargs or {}))


def needed(run: Callable[[], object]) -> Callable[[], AbstractContextManager[Any]]:
    """What a pass must run in: the replacement, if `run`, a pass, calls one of these functions. Otherwise nothing: a
    replacement costs a microsecond per call of torch."""
    mode = PlaceIndependent()
    with mode:
        run()
    return PlaceIndependent if mode.used else nullcontext
