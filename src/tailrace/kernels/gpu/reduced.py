"""Sums over the entries of a row in Triton. Their order follows from the row's length alone.

In torch the order depends on the number of rows: aten/src/ATen/native/cuda/Reduce.cuh divides a block's threads between
rows and entries.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.launcher import Launcher, special

ENTRIES, BLOCK = 1024, 4096  # the fewest entries of a program; the most that it reads at once


@triton.jit(do_not_specialize=["rows"])
def rows_summed(x, out, rows, dim, stride, divisor, SQUARED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write out [R] = Σ x / divisor over the rows of x [R, dim], in float32. SQUARED: Σ x²."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, dim, BLOCK):
        d = first + tl.arange(0, BLOCK)
        inside = (r < rows)[:, None] & (d < dim)[None, :]
        part = tl.load(x + r.to(tl.int64)[:, None] * stride + d[None, :], mask=inside, other=0.0).to(tl.float32)
        sums += part * part if SQUARED else part
    tl.store(out + r, (tl.sum(sums, 1) / divisor).to(out.dtype.element_ty), mask=r < rows)


SUM = Launcher(rows_summed)


def regular(x: torch.Tensor) -> torch.Tensor:
    """Return x itself, if the entries of its rows are contiguous and its address is aligned, else a copy.

    The compiler divides a row between threads by what it knows of the address, and the order of the sums follows from
    that.
    """
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def sharing(dim: int, most: int) -> tuple[int, int]:
    """Return the number of rows of a program, and the number of entries that it reads at once."""
    block = min(most, triton.next_power_of_2(max(1, dim)))
    return max(1, ENTRIES // block), block


def sum_rows(x: torch.Tensor, divisor: float = 1.0, squared: bool = False) -> torch.Tensor:
    dim = x.shape[-1]
    flat = regular(x).reshape(-1, dim)
    out = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    count, block = sharing(dim, BLOCK)
    if out.numel():
        with torch.cuda.device_of(x):
            SUM.launch(
                (triton.cdiv(flat.shape[0], count), 1),
                (x.device, x.dtype, dim, special(flat.stride(0)), squared),
                flat,
                out,
                flat.shape[0],
                dim,
                flat.stride(0),
                float(divisor),
                squared,
                count,
                block,
            )
    return out
