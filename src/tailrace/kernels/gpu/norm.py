"""RMS norm in Triton, one reduction per row. gpu/reduced.py explains why its order is always the same."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.launcher import Launcher, special
from tailrace.kernels.gpu.reduced import regular, sharing

LONGEST = 2**16  # entries of a row


@triton.jit(do_not_specialize=["rows", "inner"])
def rows_normed(
    x,
    delta,
    weight,
    out,
    rows,
    inner,
    dim,
    outer_stride,
    inner_stride,
    eps,
    PLUS_ONE: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the norm of x to out [R, dim]. Row r of x lies at r // inner · outer_stride + r % inner · inner_stride.

    ADD: first add delta [R, dim] to x.
    """
    r, d = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (d < dim)[None, :]
    at = x + (r // inner * outer_stride + r % inner * inner_stride)[:, None] + d[None, :]
    to = r[:, None] * dim + d[None, :]
    wide = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        wide = (wide + tl.load(delta + to, mask=inside, other=0.0).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(at, wide, mask=inside)
        wide = wide.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 1) / dim + eps)[:, None]
    w = tl.load(weight + d, mask=d < dim, other=0.0).to(tl.float32)[None, :]
    if PLUS_ONE:
        normed *= 1.0 + w
    else:
        normed = normed.to(x.dtype.element_ty).to(tl.float32) * w
    tl.store(out + to, normed.to(out.dtype.element_ty), mask=inside)


NORM = Launcher(rows_normed)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False) -> torch.Tensor:
    return normed(regular(x), None, weight, eps, plus_one)


def add_rms_norm(residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if delta.shape != residual.shape or delta.dtype != residual.dtype or not residual.is_contiguous():
        raise ValueError(
            f"residual must be contiguous and delta like it, got {residual.dtype} {tuple(residual.shape)} with strides "
            f"{residual.stride()} and {delta.dtype} {tuple(delta.shape)}"
        )
    return normed(residual, delta.contiguous(), weight, eps, False)


def normed(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, plus_one: bool
) -> torch.Tensor:
    """Return the norm of x, or of x += delta."""
    dim = x.shape[-1]
    if weight.shape != (dim,) or weight.dtype != x.dtype or weight.stride(0) != 1 or dim > LONGEST:
        raise ValueError(
            f"weight must be contiguous [{dim}] of {x.dtype}, of at most {LONGEST} entries, got {weight.dtype} "
            f"{tuple(weight.shape)} with strides {weight.stride()}"
        )
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.flatten(0, -3) if x.dim() > 3 else x.view((1,) * (3 - x.dim()) + x.shape)
    count, block = sharing(dim, LONGEST)
    strides, number = rows.stride()[:2], rows.shape[0] * rows.shape[1]
    addresses = (x.data_ptr(), weight.data_ptr(), 0 if delta is None else delta.data_ptr())
    key = (x.device, x.dtype, dim, *map(special, (*strides, *addresses)), plus_one, delta is None)
    sizes = (number, rows.shape[1], dim, *strides, eps)
    given = rows if delta is None else delta  # not read
    if x.numel():
        with torch.cuda.device_of(x):
            how = (plus_one, delta is not None, count, block)
            NORM.launch((triton.cdiv(number, count), 1), key, rows, given, weight, out, *sizes, *how)
    return out
