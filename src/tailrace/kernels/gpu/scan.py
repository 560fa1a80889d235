"""The one streaming pass over the rows: per block of 256 entries the maximum, and where a program wants them, mass and moments.

Blocks are the same however a row is split over programs, and every block's sums are taken alone, so that a row's numbers depend neither
on the split nor on the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.order import NONE_KEY, ordered, splits, value_of

BLOCK = 256
TILE = 16  # blocks that a program reads at once
LOG2E = tl.constexpr(1.4426950408889634)
MASS = tl.constexpr(1)  # of `wants`: Σ e^((l − the block's max) · scale)
SIGMA = tl.constexpr(2)  # of `wants`: number, Σ d and Σ d² of the finite ones, d = l − the block's max


@triton.jit
def scan_rows(
    logits, stride, vocab, blocks, source, slot, wants, scale, keys, mass, moments,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """keys int32, mass float32 [R, blocks], moments float32 [3, R, blocks]; the latter two only where wanted."""
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    rows = tl.num_programs(0)
    owner = tl.load(slot + row)
    asked, times = tl.load(wants + owner), tl.load(scale + owner)
    at = logits + tl.load(source + row) * stride
    for tile in range(part, tl.cdiv(blocks, TILE), parts):
        block = tile * TILE + tl.arange(0, TILE)
        ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        x = tl.load(at + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        key = tl.max(ordered(x), 1)
        out = row.to(tl.int64) * blocks + block
        inside = block < blocks
        tl.store(keys + out, key, mask=inside)
        if asked != 0:
            top = tl.where(key > NONE_KEY, value_of(key), 0.0)  # of −inf alone: weights of 0
            below = x - top[:, None]
            if asked & MASS:
                tl.store(mass + out, tl.sum(tl.exp2(below * (times * LOG2E)), 1), mask=inside)
            if asked & SIGMA:
                finite = below > float("-inf")
                d = tl.where(finite, below, 0.0)
                size = rows.to(tl.int64) * blocks
                tl.store(moments + out, tl.sum(finite.to(tl.float32), 1), mask=inside)
                tl.store(moments + size + out, tl.sum(d, 1), mask=inside)
                tl.store(moments + 2 * size + out, tl.sum(d * d, 1), mask=inside)


def scan(
    logits: torch.Tensor, source: torch.Tensor, slot: torch.Tensor, wants: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """logits [L, V]; source, slot int64 [R]; by slot: wants int32, scale float32 → keys, mass and moments of the rows' blocks."""
    rows, vocab = source.numel(), logits.shape[1]
    blocks = triton.cdiv(vocab, BLOCK)
    keys = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    mass = torch.empty((rows, blocks), dtype=torch.float32, device=logits.device)
    moments = torch.empty((3, rows, blocks), dtype=torch.float32, device=logits.device)
    if rows:
        scan_rows[(rows, splits(rows, triton.cdiv(blocks, TILE)))](
            logits, logits.stride(0), vocab, blocks, source, slot, wants, scale, keys, mass, moments, BLOCK, TILE
        )
    return keys, mass, moments
