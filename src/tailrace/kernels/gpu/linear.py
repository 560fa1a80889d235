"""Linear layers in Triton. A row has the same bits whatever the other rows are, and however many they are.

cuBLAS chooses a kernel by the number of rows, and kernels add in different orders. Here an element's order of additions
follows from the layer's shape (N, K) alone:

- K is cut into `splits_of(N, K)` parts. Tensor cores add a part's products from its first entry to its last, in float32
  from 0 on. (Float32 inputs: by fused multiply-adds, one entry after the other.)
- The parts' sums are added in their order, then the bias. The result is rounded once.

With few rows a program computes one part, and `add_splits` adds the parts up. With many rows a program computes all
parts of its tile one after the other. Tiles differ with the number of rows. Three facts keep the bits the same:

- The tensor cores' instruction has the same depth for every tile (16 entries of bf16 and f16) and adds to the sum so
  far. BLOCK_K says how many instructions one turn of the loop has, not what they add. A part is a multiple of every
  BLOCK_K.
- The weights are the left operand. So every tile has a multiple of 64 rows (features), as Hopper's wgmma and
  Blackwell's tcgen05 need, and no tile falls back to another instruction. Tokens are its columns, a multiple of 16. An
  element of the product does not depend on how many columns the instruction has. (Ampere: m16n8k16 for all.)
- Masked entries are 0. A product with 0 does not change a sum.

tests/kernels/test_gpu_linear.py compares the bits on hardware.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import NamedTuple

import torch
import triton

from tailrace.kernels.gpu.launcher import Launcher, special
from tailrace.kernels.gpu.linear_kernels import UNIT, add_splits, multiply

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FEATURES, ENOUGH = 64, 128  # Features of the smallest tile. Number of programs that keeps a GPU busy.
WORTH = 4096  # The shortest part of K: the sum of shorter parts costs more than they save.
JOINED = 1024  # Features per program of add_splits.
GROUP = 8  # Tiles of tokens whose programs run side by side and share the weights in the cache.


class Tile(NamedTuple):
    """The shape of a program's work: `features` × `tokens`, and `depth` entries of K in one turn of the loop."""

    features: int
    tokens: int
    depth: int
    warps: int
    stages: int

    def fits(self, device: torch.device, itemsize: int) -> bool:
        """Return whether the tile's stages fit into the device's shared memory."""
        return (self.features + self.tokens) * self.depth * self.stages * itemsize <= shared_memory(device)


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program may use: 227 KiB on an H100, 99 KiB on an RTX 4090."""
    if device.type != "cuda":
        return 2**20
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


# From the largest to the smallest.
HALF = (
    Tile(128, 128, 64, 8, 3),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 5),
    Tile(64, 32, 64, 4, 6),
    Tile(64, 16, 64, 4, 8),
)
SINGLE = (Tile(64, 64, 32, 4, 3), Tile(64, 16, 32, 4, 3))  # float32
SMALLEST = Tile(64, 16, 64, 4, 2)  # instead of HALF on GPUs with little shared memory: 64 KiB on a T4


class Weight(NamedTuple):
    """A linear layer's weight [N, K], with one stride of 1, and its bias [N] or None. key: the properties that kernels
    are compiled for."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    key: tuple[Hashable, ...]


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Weight:
    """Return the layer as `linear` takes it. Nothing is packed: the kernel reads the rows or columns of `weight`."""
    if weight.dim() != 2 or weight.dtype not in DTYPES:
        raise ValueError(f"weight must be [N, K] of bf16, f16 or f32, got {weight.dtype} {tuple(weight.shape)}")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        raise ValueError(f"bias must be [{weight.shape[0]}] of {weight.dtype}, got {bias.dtype} {tuple(bias.shape)}")
    weight, bias = weight.detach(), None if bias is None else bias.detach().contiguous()
    if 1 not in weight.stride():
        weight = weight.contiguous()
    numbers = (*weight.shape, *weight.stride(), weight.data_ptr(), *(() if bias is None else (bias.data_ptr(),)))
    return Weight(weight, bias, (weight.device, weight.dtype, *map(special, numbers)))


@cache
def splits_of(features: int, depth: int) -> tuple[int, int]:
    """Return the number of parts of K, and the number of UNITs in each part but the last."""
    tiles, units = triton.cdiv(features, FEATURES), triton.cdiv(depth, UNIT.value)
    splits = 1
    while tiles * splits < ENOUGH and depth >= 2 * splits * WORTH:
        splits *= 2
    share = triton.cdiv(units, splits)
    return triton.cdiv(units, share), share


@cache
def tile_of(tokens: int, features: int, dtype: torch.dtype, device: torch.device) -> Tile:
    """Return the largest tile of which the product has enough to keep a GPU busy; else the smallest that fits.

    Tiles with few tokens are left out if the product has many: they would read the weights often.
    """
    single = dtype == torch.float32
    tiles, width = SINGLE if single else HALF, max(16, triton.next_power_of_2(tokens))
    fitting = [
        tile for tile in tiles if min(32, width) <= tile.tokens <= width and tile.fits(device, dtype.itemsize)
    ] or [tiles[0] if single else SMALLEST]
    enough = (tile for tile in fitting if programs(tokens, features, tile) >= ENOUGH)
    return next(enough, fitting[-1])


def programs(tokens: int, features: int, tile: Tile) -> int:
    """Return the number of tiles of a product."""
    return triton.cdiv(tokens, tile.tokens) * triton.cdiv(features, tile.features)


TILES = (*HALF, *SINGLE, SMALLEST)
MULTIPLY = {tile: Launcher(multiply, num_warps=tile.warps, num_stages=tile.stages) for tile in TILES}
ADD = Launcher(add_splits)


def linear(x: torch.Tensor, packed: Weight) -> torch.Tensor:
    features, depth = packed.weight.shape
    if x.shape[-1] != depth or x.dtype != packed.weight.dtype:
        raise ValueError(f"x must be [..., {depth}] of {packed.weight.dtype}, got {x.dtype} {tuple(x.shape)}")
    rows = x.reshape(-1, depth)
    if rows.stride(1) != 1 or rows.data_ptr() % 16:
        rows = rows.clone(memory_format=torch.contiguous_format)
    out = torch.empty((*x.shape[:-1], features), dtype=x.dtype, device=x.device)
    if out.numel():
        with torch.cuda.device_of(x):
            launch(rows, packed, out)
    return out


def launch(rows: torch.Tensor, packed: Weight, out: torch.Tensor) -> None:
    """Write rows [T, K] times the weight to out [T, N]."""
    (weight, bias, fixed), tokens = packed, rows.shape[0]
    features, depth = weight.shape
    splits, units = splits_of(features, depth)
    tile = tile_of(tokens, features, out.dtype, out.device)
    tiles = programs(tokens, features, tile)
    partial, whole, even = splits > 1 and tiles < ENOUGH, splits == 1, depth % tile.depth == 0
    work = torch.empty((splits, tokens, features), dtype=torch.float32, device=out.device) if partial else out
    key = (*fixed, special(rows.stride(0)), bias is None, partial, whole, even)
    given = weight if bias is None else bias  # not read without a bias
    sizes = (tokens, features, depth, units, splits, rows.stride(0), *weight.stride(), features)
    how = (bias is not None and not partial, partial, whole, even, *tile[:3], GROUP)
    MULTIPLY[tile].launch((tiles, splits if partial else 1), key, rows, weight, given, out, work, *sizes, *how)
    if partial:
        grid = (tokens, triton.cdiv(features, JOINED))
        ADD.launch(grid, key, work, given, out, tokens, features, splits, features, bias is not None, JOINED)
