"""Products of many matrices in Triton: of pairs (bmm), and of groups of rows with their group's weights, such as an
expert's.

An element is added up from the first entry of its row to the last, whatever the other rows are; gpu/linear.py explains
why. The host does not know the sizes of the groups: tiles of rows find their group in the kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.launcher import Launcher, special
from tailrace.kernels.gpu.linear import DTYPES, MULTIPLY, tile_of
from tailrace.kernels.gpu.linear_kernels import over_depth
from tailrace.kernels.reference.products import Grouped, pack_grouped

__all__ = ["bmm", "grouped_linear", "pack_grouped"]


@triton.jit(do_not_specialize=["m", "n"])
def multiply_pairs(
    a,
    b,
    out,
    m,
    n,
    depth,
    a_batch,
    a_m,
    b_batch,
    b_n,
    b_k,
    EVEN: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
):
    """Compute a tile of out [B, M, N] = a [B, M, K] · b [B, K, N]."""
    pair, tiles_n = tl.program_id(0).to(tl.int64), tl.cdiv(n, BN)  # program_id(1) must stay below 65,536
    column = tl.program_id(1) % tiles_n * BN + tl.arange(0, BN)
    row = tl.program_id(1) // tiles_n * BT + tl.arange(0, BT)
    of_b = b + pair * b_batch + column.to(tl.int64) * b_n
    of_a = a + pair * a_batch + row.to(tl.int64) * a_m
    sums = over_depth(of_a, of_b, b_k, row < m, column < n, 0, depth, BN, BT, BK, EVEN)
    to = out + (pair * m + row)[None, :] * n + column[:, None]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(row < m)[None, :] & (column < n)[:, None])


@triton.jit(do_not_specialize=["groups", "features"])
def multiply_groups(
    x,
    weight,
    bias,
    starts,
    out,
    groups,
    features,
    depth,
    x_stride,
    w_group,
    w_n,
    w_k,
    out_stride,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Compute a tile of out [S, N]: rows starts[g] … starts[g + 1] − 1 of x [S, K] times weight[g] [N, K], transposed.

    program_id(1) counts the tiles of BT rows of all groups.
    """
    each = tl.arange(0, GROUPS)
    begin = tl.load(starts + each, mask=each < groups, other=0)
    tiles = tl.cdiv(tl.load(starts + each + 1, mask=each < groups, other=0) - begin, BT)
    before = tl.cumsum(tiles, 0)
    group = tl.sum((before <= tl.program_id(1)).to(tl.int32), 0)
    if group >= groups:
        return
    mine = each == group
    tile = tl.program_id(1) - tl.sum(tl.where(mine, before - tiles, 0), 0)
    row = tl.sum(tl.where(mine, begin, 0), 0) + tile * BT + tl.arange(0, BT)
    last = tl.load(starts + group + 1)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    w_at = weight + group.to(tl.int64) * w_group + n.to(tl.int64) * w_n
    x_at = x + row.to(tl.int64) * x_stride
    sums = over_depth(x_at, w_at, w_k, row < last, n < features, 0, depth, BN, BT, BK, EVEN)
    if BIAS:
        sums += tl.load(bias + group.to(tl.int64) * features + n, mask=n < features, other=0.0).to(tl.float32)[:, None]
    to = out + row.to(tl.int64)[None, :] * out_stride + n[:, None]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(row < last)[None, :] & (n < features)[:, None])


PAIRS, GROUPS = (
    {tile: Launcher(kernel, **launcher.options) for tile, launcher in MULTIPLY.items()}
    for kernel in (multiply_pairs, multiply_groups)
)


def check(name: str, *tensors: torch.Tensor) -> None:
    """Raise ValueError unless all tensors have one dtype that the kernels support."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise ValueError(f"{name} takes bf16, f16 or f32, all alike, got {', '.join(sorted(map(str, dtypes)))}")


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    check("bmm", a, b)
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ValueError(f"a must be [B, M, K] and b [B, K, N], got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.stride(2) != 1 or a.data_ptr() % 16:
        a = a.clone(memory_format=torch.contiguous_format)
    pairs, m, depth = a.shape
    n = b.shape[2]
    out = torch.empty((pairs, m, n), dtype=a.dtype, device=a.device)
    tile = tile_of(m, n, a.dtype, a.device)
    even = depth % tile.depth == 0
    strides = (*a.stride()[:2], b.stride(0), b.stride(2), b.stride(1))
    key = (a.device, a.dtype, *map(special, (depth, *strides, b.data_ptr())), even)
    tiles = triton.cdiv(n, tile.features) * triton.cdiv(m, tile.tokens)
    if out.numel():
        with torch.cuda.device_of(a):
            PAIRS[tile].launch((pairs, tiles), key, a, b, out, m, n, depth, *strides, even, *tile[:3])
    return out


def grouped_linear(x: torch.Tensor, packed: Grouped, starts: torch.Tensor) -> torch.Tensor:
    weight, bias = packed
    check("grouped_linear", x, weight, *(() if bias is None else (bias,)))
    groups, features, depth = weight.shape
    if x.dim() != 2 or x.shape[1] != depth or starts.shape != (groups + 1,):
        raise ValueError(
            f"x must be [S, {depth}] and starts [{groups + 1}], got {tuple(x.shape)} and {tuple(starts.shape)}"
        )
    if x.stride(1) != 1 or x.data_ptr() % 16:
        x = x.clone(memory_format=torch.contiguous_format)
    rows = x.shape[0]
    out = torch.zeros((rows, features), dtype=x.dtype, device=x.device)
    tile = tile_of(triton.cdiv(rows, groups), features, x.dtype, x.device)
    even, strides = depth % tile.depth == 0, (x.stride(0), *weight.stride())
    given = weight if bias is None else bias.contiguous()  # not read without a bias
    numbers = (depth, features, *strides, weight.data_ptr(), given.data_ptr(), starts.data_ptr())
    key = (x.device, x.dtype, starts.dtype, groups, bias is None, even, *map(special, numbers))
    sizes = (groups, features, depth, *strides, features)
    how = (bias is not None, even, *tile[:3], triton.next_power_of_2(groups))
    if out.numel():
        with torch.cuda.device_of(x):
            grid = (triton.cdiv(features, tile.features), min(rows, rows // tile.tokens + groups))
            GROUPS[tile].launch(grid, key, x, weight, given, starts, out, *sizes, *how)
    return out
