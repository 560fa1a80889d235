"""Functions of torch whose bits, on a CPU, don't depend on an element's place or on its neighbours.

torch computes sigmoid, SiLU, softplus and GELU in vectors. The last elements of a tensor, or of a thread's share of it,
which fill no vector, go through another routine. A matrix product adds in an order that depends on the number of rows.
So a token's bits would depend on how many tokens a batch has.

Plain arithmetic, exp, log1p, erf and tanh treat all elements alike. Functions made of these do too
(tests/runners/test_invariant.py), and so does a packed linear layer.
Modules that runners/fuse.py replaces need none of this. runners/invariant_gpu.py has the same for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tailrace import kernels

PACKED = "tailrace_packed"  # where a parameter carries its packed forms


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return 1 / (1 + e⁻ˣ)."""
    return (1 / (1 + torch.exp(-x.float()))).to(x.dtype)


def silu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Return x · sigmoid(x). inplace is not needed: no other code reads x."""
    wide = x.float()
    return (wide / (1 + torch.exp(-wide))).to(x.dtype)


def softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    """Return log(1 + e^(βx)) / β; x itself beyond the threshold of βx."""
    wide = x.float()
    scaled = wide if beta == 1 else wide * beta
    soft = torch.log1p(torch.exp(scaled))
    return torch.where(scaled > threshold, wide, soft if beta == 1 else soft / beta).to(x.dtype)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return x · Φ(x), or its approximation by tanh (arXiv 1606.08415)."""
    wide = x.float()
    if approximate == "tanh":
        inner = torch.tanh((2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide * wide * wide))
    else:
        inner = torch.erf(wide * 0.5**0.5)
    return (0.5 * wide * (1 + inner)).to(x.dtype)


def is_packable(*tensors: torch.Tensor | None) -> bool:
    """Return True if the CPU's packed linear layer takes tensors of these dtypes together."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    return dtypes in ({torch.float32}, {torch.bfloat16})


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x Wᵀ + b of a weight [N, K] that is no packed module's, such as a router's."""
    if weight.dim() != 2 or not is_packable(x, weight, bias):
        return F.linear(x, weight, bias)
    return kernels.linear(x, get_packed(weight, lambda: kernels.pack_linear(weight, bias)))


def matmul(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return a product with a parameter: W X of W [N, K] and X [..., K, T], or X W of X [..., T, K] and W [K, N].
    Others are torch's."""
    if options or not is_packable(a, b) or a.dim() < 2 or b.dim() < 2:
        return torch.matmul(a, b, **options)
    if isinstance(a, nn.Parameter) and a.dim() == 2:
        return kernels.linear(b.mT, get_packed(a, lambda: kernels.pack_linear(a))).mT
    if isinstance(b, nn.Parameter) and b.dim() == 2:
        return kernels.linear(a, get_packed(b, lambda: kernels.pack_linear(b.mT), "transposed"))
    return torch.matmul(a, b)


def get_packed(weight: torch.Tensor, pack: Callable[[], Any], how: str = "") -> Any:
    """Return the packed weight: a parameter's is kept, any other tensor's is made for this call."""
    if not isinstance(weight, nn.Parameter):
        return pack()
    kept: dict[str, Any] | None = getattr(weight, PACKED, None)
    if kept is None:
        kept = {}
        setattr(weight, PACKED, kept)
    if how not in kept:
        kept[how] = pack()
    return kept[how]


PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
REPLACED: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.sigmoid: sigmoid,
    torch.Tensor.sigmoid: sigmoid,
    F.silu: silu,
    F.softplus: softplus,
    F.gelu: gelu,
    F.linear: linear,
    **dict.fromkeys(PRODUCTS, matmul),
}


class Replacing(TorchFunctionMode):
    """A mode in which a model's code calls the functions of `replaced` instead of torch's. used: it has called one."""

    replaced: Mapping[Any, Callable[..., Any]] = {}
    used = False

    def takes(self, func: Any, args: Any) -> bool:
        """Return whether this call is replaced, too."""
        return True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = self.replaced.get(func)
        if ours is None or not self.takes(func, args):
            return func(*args, **(kwargs or {}))
        self.used = True
        return ours(*args, **(kwargs or {}))


class PlaceIndependent(Replacing):
    """The replacements for the CPU."""

    replaced = REPLACED

    def takes(self, func: Any, args: Any) -> bool:
        """Return False for products without a parameter."""
        return func not in PRODUCTS or any(isinstance(each, nn.Parameter) for each in args)


def select_mode(mode: type[Replacing], run: Callable[[], object]) -> Callable[[], AbstractContextManager[Any]]:
    """Return the context that a pass must run in: the replacement if `run`, a pass, calls one of these functions,
    otherwise nothing. A replacement costs a microsecond per call of torch."""
    with mode() as tried:
        run()
    return mode if tried.used else nullcontext
