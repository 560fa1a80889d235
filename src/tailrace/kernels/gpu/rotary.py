"""Rotary position embedding in Triton, in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.launcher import Launcher, special


@triton.jit
def turn(
    x,
    cos,
    sin,
    token_stride,
    head_stride,
    cos_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HALF_PAD: tl.constexpr,
):
    """Rotate the pairs (d, d + HALF) in the heads of one token."""
    t = tl.program_id(0).to(tl.int64)
    h, d = tl.arange(0, HEADS_PAD)[:, None], tl.arange(0, HALF_PAD)[None, :]
    inside = (h < HEADS) & (d < HALF)
    at = x + t * token_stride + h * head_stride + d
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    angle = t * cos_stride + d
    c = tl.load(cos + angle, mask=d < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=d < HALF, other=0.0).to(tl.float32)
    upper_c = tl.load(cos + angle + HALF, mask=d < HALF, other=0.0).to(tl.float32)
    upper_s = tl.load(sin + angle + HALF, mask=d < HALF, other=0.0).to(tl.float32)
    tl.store(at, (a * c - b * s).to(x.dtype.element_ty), mask=inside)
    tl.store(at + HALF, (b * upper_c + a * upper_s).to(x.dtype.element_ty), mask=inside)


TURN = Launcher(turn)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    tokens, heads, dim = x.shape
    width = cos.shape[-1]
    if cos.shape != (tokens, width) or sin.shape != cos.shape or width % 2 or width > dim or x.stride(2) != 1:
        raise ValueError(
            f"cos and sin must be [{tokens}, an even number of up to {dim}] for x {tuple(x.shape)} with contiguous "
            f"entries, got {tuple(cos.shape)}, {tuple(sin.shape)} and strides {x.stride()}"
        )
    if x.numel() == 0:
        return
    cos, sin = cos.contiguous(), sin.contiguous()
    half = width // 2
    addresses = (x.data_ptr(), cos.data_ptr(), sin.data_ptr())
    with torch.cuda.device_of(x):
        TURN.launch(
            (tokens, 1),
            (x.device, x.dtype, cos.dtype, heads, width, *map(special, (x.stride(0), x.stride(1), *addresses))),
            x,
            cos,
            sin,
            x.stride(0),
            x.stride(1),
            width,
            heads,
            half,
            triton.next_power_of_2(heads),
            triton.next_power_of_2(half),
        )
