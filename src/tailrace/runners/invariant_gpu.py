"""Replacements for functions of torch whose order of additions, on a GPU, depends on the number of rows.

- Matrix products: cuBLAS chooses a kernel by the numbers of rows and of matrices.
- Sums, means and norms over a dimension: aten/src/ATen/native/cuda/Reduce.cuh divides a block's threads between
  the results and the terms of each result.

Of torch's others, softmax over the last dimension, layer norm and RMS norm give every row threads by its length alone,
and elementwise functions compute an element alone. Cumulative sums and torch.einsum are not replaced. Modules that
runners/fuse.py replaces need none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from tailrace import kernels
from tailrace.runners.invariant import PRODUCTS, Replacing

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
BATCHED = (torch.bmm, torch.Tensor.bmm)
PAIRS = (*PRODUCTS, *BATCHED)
Dim = int | tuple[int, ...] | list[int] | None


def has_kernel_dtypes(*tensors: torch.Tensor | None) -> bool:
    """Return True if the kernels take tensors of these dtypes together."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    return len(dtypes) == 1 and dtypes <= set(FLOATS)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x Wᵀ + b of a weight [N, K] that is no replaced module's, such as a router's."""
    if weight.dim() != 2 or not has_kernel_dtypes(x, weight, bias):
        return F.linear(x, weight, bias)
    return kernels.linear(x, kernels.pack_linear(weight, bias))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a [..., M, K] · b [..., K, N], either of which may lack dimensions."""
    if not has_kernel_dtypes(a, b) or a.dim() < 2 or b.dim() < 2:
        return torch.matmul(a, b)
    if b.dim() == 2:
        return linear(a, b.mT)
    if a.dim() == 2:
        return linear(b.mT, a).mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    pairs = (x.expand(*batch, *x.shape[-2:]).flatten(0, -3) for x in (a, b))
    return kernels.bmm(*pairs).unflatten(0, batch)


def mm(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Do as torch.mm. Routers ask for float32 of bfloat16."""
    if not has_kernel_dtypes(a, b) or out_dtype not in (None, a.dtype, torch.float32):
        return torch.mm(a, b) if out_dtype is None else torch.mm(a, b, out_dtype=out_dtype)
    dtype = out_dtype or a.dtype
    return linear(a.to(dtype), b.to(dtype).mT)


def addmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """Do as torch.addmm with a bias."""
    if options or x.shape != b.shape[1:] or not has_kernel_dtypes(x, a, b):
        return torch.addmm(x, a, b, **options)
    return linear(a, b.mT, x)


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Do as torch.bmm."""
    return kernels.bmm(a, b) if has_kernel_dtypes(a, b) else torch.bmm(a, b)


def reduce_dimension(
    original: Callable[..., torch.Tensor], x: torch.Tensor, dim: Dim, keepdim: bool, options: Mapping[str, Any]
) -> torch.Tensor:
    """Return Σ x over one dimension, or its mean; any other call is the original's. options: dtype alone."""
    dtype = options.get("dtype") or x.dtype
    single = dim if isinstance(dim, int) else dim[0] if dim is not None and len(dim) == 1 else None
    if single is None or x.dtype not in FLOATS or dtype not in FLOATS or options.keys() - {"dtype"}:
        given = ({} if dim is None else {"dim": dim}) | ({"keepdim": True} if keepdim else {})
        return original(x, **given, **options)
    divisor = x.shape[single] if original is torch.mean else 1
    out = kernels.sum_rows(x.to(dtype).movedim(single, -1), divisor)
    return out.unsqueeze(single if single >= 0 else x.dim() + single) if keepdim else out


def total(x: torch.Tensor, dim: Dim = None, keepdim: bool = False, **options: Any) -> torch.Tensor:
    """Do as torch.sum."""
    return reduce_dimension(torch.sum, x, dim, keepdim, options)


def mean(x: torch.Tensor, dim: Dim = None, keepdim: bool = False, **options: Any) -> torch.Tensor:
    """Do as torch.mean."""
    return reduce_dimension(torch.mean, x, dim, keepdim, options)


def norm(x: torch.Tensor, p: Any = 2, dim: Dim = None, keepdim: bool = False, **options: Any) -> torch.Tensor:
    """Return √Σ x² over one dimension; do as torch.norm in any other call."""
    if p != 2 or not isinstance(dim, int) or x.dtype not in FLOATS or options:
        return torch.norm(x, p, dim, keepdim, **options)
    out = kernels.sum_rows(x.float().movedim(dim, -1), squared=True).sqrt().to(x.dtype)
    return out.unsqueeze(dim if dim >= 0 else x.dim() + dim) if keepdim else out


def normalize(x: torch.Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> torch.Tensor:
    """Return x / max(‖x‖, eps)."""
    return x / norm(x, p, dim, keepdim=True).clamp_min(eps)


class RowsIndependent(Replacing):
    """The replacements for a GPU."""

    replaced: Mapping[Any, Callable[..., Any]] = {
        F.linear: linear,
        **dict.fromkeys(PRODUCTS, matmul),
        **dict.fromkeys(BATCHED, bmm),
        **dict.fromkeys((torch.mm, torch.Tensor.mm), mm),
        torch.addmm: addmm,
        **dict.fromkeys((torch.sum, torch.Tensor.sum), total),
        **dict.fromkeys((torch.mean, torch.Tensor.mean), mean),
        **dict.fromkeys((torch.norm, torch.Tensor.norm), norm),
        F.normalize: normalize,
    }

    def takes(self, func: Any, args: Any) -> bool:
        """Return False for products of a single term, as in rotary embeddings: these are exact."""
        return func not in PAIRS or (len(args) == 2 and args[0].shape[-1:] != (1,))
