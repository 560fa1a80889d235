"""Gated activations in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.launcher import Launcher, special

BLOCK = 1024


@triton.jit
def gated(gate_up, out, dim, stride, BLOCK: tl.constexpr):
    """Compute silu(gate) · up for BLOCK entries of one row. silu is rounded before the product, as torch's is."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < dim
    gate = tl.load(gate_up + row * stride + d, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + dim + d, mask=inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * dim + d, (silu * up).to(out.dtype.element_ty), mask=inside)


GATED = Launcher(gated)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    width = gate_up.shape[-1]
    if width % 2:
        raise ValueError(f"gate_up must hold gate then up, got {width} entries")
    rows, dim = gate_up.reshape(-1, width), width // 2
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = torch.empty((*gate_up.shape[:-1], dim), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        with torch.cuda.device_of(out):
            GATED.launch(
                (rows.shape[0], triton.cdiv(dim, BLOCK)),
                (out.device, out.dtype, dim, *map(special, (rows.stride(0), rows.data_ptr()))),
                rows,
                out,
                dim,
                rows.stride(0),
                BLOCK,
            )
    return out
