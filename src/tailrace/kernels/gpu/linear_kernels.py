"""The Triton kernels of the linear layers. linear.py launches them and explains why a row's bits depend on its own
numbers alone."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.online_softmax import product

UNIT = tl.constexpr(256)  # parts of the depth are multiples of it, so that Triton knows their addresses to be aligned


@triton.jit
def over_depth(
    x_at,
    w_at,
    w_k,
    inside_t,
    inside_n,
    first,
    last,
    BN: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Return Σ weight · x over the depth first … last − 1, a float32 tile [BN, BT], in steps of BK from `first` on."""
    k = tl.arange(0, BK)
    sums = tl.zeros((BN, BT), tl.float32)
    for start in range(first, last, BK):
        w_inside, x_inside = inside_n[:, None], inside_t[None, :]
        if not EVEN:
            w_inside, x_inside = w_inside & (start + k < last)[None, :], x_inside & (start + k < last)[:, None]
        w = tl.load(w_at[:, None] + (start + k).to(tl.int64)[None, :] * w_k, mask=w_inside, other=0.0)
        x = tl.load(x_at[None, :] + (start + k)[:, None], mask=x_inside, other=0.0)
        sums = product(w, x, sums)
    return sums


@triton.jit(do_not_specialize=["tokens", "features", "units", "splits"])
def multiply(
    x,
    weight,
    bias,
    out,
    work,
    tokens,
    features,
    depth,
    units,
    splits,
    x_stride,
    w_n,
    w_k,
    out_stride,
    BIAS: tl.constexpr,
    PARTIAL: tl.constexpr,
    WHOLE: tl.constexpr,
    EVEN: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute a tile of out [T, N] = x [T, K] · weightᵀ [K, N] + bias, of BN features × BT tokens.

    The depth K is cut into `splits` parts of `units` times UNIT each. PARTIAL: compute this program's part alone, and
    write it to work, float32 [splits, T, N]. WHOLE: there is one part. EVEN: K is a multiple of BK. GROUP: tiles of
    tokens whose programs are neighbours.
    """
    share = units * UNIT
    tiles_n, tiles_t = tl.cdiv(features, BN), tl.cdiv(tokens, BT)
    program = tl.program_id(0)
    group = program // (GROUP * tiles_n)
    first_t = group * GROUP
    height = tl.minimum(tiles_t - first_t, GROUP)
    within = program - group * (GROUP * tiles_n)
    n = within // height * BN + tl.arange(0, BN)
    t = (first_t + within % height) * BT + tl.arange(0, BT)
    inside_n, inside_t = n < features, t < tokens
    x_at, w_at = x + t.to(tl.int64) * x_stride, weight + n.to(tl.int64) * w_n
    inside = inside_t[None, :] & inside_n[:, None]
    if PARTIAL:
        split = tl.program_id(1)
        last = tl.minimum(depth, (split + 1) * share)
        sums = over_depth(x_at, w_at, w_k, inside_t, inside_n, split * share, last, BN, BT, BK, EVEN)
        to = work + (split.to(tl.int64) * tokens + t)[None, :] * out_stride + n[:, None]
        tl.store(to, sums, mask=inside)
    else:
        sums = over_depth(x_at, w_at, w_k, inside_t, inside_n, 0, tl.minimum(depth, share), BN, BT, BK, EVEN)
        if not WHOLE:
            for split in range(1, splits):
                last = tl.minimum(depth, (split + 1) * share)
                sums += over_depth(x_at, w_at, w_k, inside_t, inside_n, split * share, last, BN, BT, BK, EVEN)
        if BIAS:
            sums += tl.load(bias + n, mask=inside_n, other=0.0).to(tl.float32)[:, None]
        to = out + t.to(tl.int64)[None, :] * out_stride + n[:, None]
        tl.store(to, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "features", "splits"])
def add_splits(work, bias, out, tokens, features, splits, out_stride, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Write out [T, N]: the sum of work [splits, T, N] in the order of the splits, plus the bias."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < features
    at, plane = work + t * out_stride + n, tokens.to(tl.int64) * out_stride
    sums = tl.load(at, mask=inside, other=0.0)
    for split in range(1, splits):
        sums += tl.load(at + split * plane, mask=inside, other=0.0)
    if BIAS:
        sums += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + t * out_stride + n, sums.to(out.dtype.element_ty), mask=inside)
