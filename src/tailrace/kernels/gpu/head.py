"""Sampling as the end of the output projection: logits are never written to memory.

Each program multiplies a tile of rows by a tile of the vocabulary, adds the noise, and keeps its best token. The best
of the tiles wins. Logits of a tile are first rounded to the model's dtype, as written logits are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.draw import DRAW
from tailrace.kernels.gpu.noise import UNFUSED, gumbel_at
from tailrace.kernels.gpu.online_softmax import product
from tailrace.kernels.gpu.order import STATUSES, ordered, status_of

ROWS, IDS, DEPTH = 16, 128, 64  # of a tile
LAST = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["rows"])
def best_of_tiles(
    hidden,
    weight,
    keys,
    positions,
    temperatures,
    score,
    token,
    largest,
    rows,
    vocab,
    width,
    hidden_stride,
    weight_stride,
    ROWS: tl.constexpr,
    IDS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Write the best of each tile: score float64, token int32 and largest int32 (the logits' key), each [tiles, R]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    id = tile * IDS + tl.arange(0, IDS)
    at = hidden + row.to(tl.int64)[:, None] * hidden_stride
    of = weight + id.to(tl.int64)[:, None] * weight_stride
    sums = tl.zeros((ROWS, IDS), tl.float32)
    for first in range(0, width, DEPTH):
        k = first + tl.arange(0, DEPTH)
        h = tl.load(at + k[None, :], mask=(row < rows)[:, None] & (k < width)[None, :], other=0.0)
        w = tl.load(of + k[None, :], mask=(id < vocab)[:, None] & (k < width)[None, :], other=0.0)
        sums = product(h, tl.trans(w), sums)
    logit = sums.to(hidden.dtype.element_ty).to(tl.float32)
    inside = (id < vocab)[None, :] & (row < rows)[:, None]
    key = tl.where(inside, ordered(logit), -(2**31))
    temperature = tl.load(temperatures + row, mask=row < rows, other=0.0)
    seed = tl.load(keys + row, mask=row < rows, other=0)
    position = tl.load(positions + row, mask=row < rows, other=0)
    noise = gumbel_at(seed[:, None], position[:, None], DRAW, id[None, :].to(tl.uint32))
    warm = (temperature > 0.0)[:, None]
    scaled = logit.to(tl.float64) / tl.where(warm, temperature[:, None], 1.0)
    value = scaled + tl.where(warm, noise, 0.0).to(tl.float64)
    value = tl.where(inside & (value == value), value, float("-inf"))  # a row with NaN gets its status from `largest`
    best = tl.max(value, 1)
    mine = tl.min(tl.where(inside & (value == best[:, None]), id[None, :], LAST), 1)
    out = tile.to(tl.int64) * rows + row
    tl.store(score + out, best, mask=row < rows)
    tl.store(token + out, mine, mask=row < rows)
    tl.store(largest + out, tl.max(key, 1), mask=row < rows)


@triton.jit(do_not_specialize=["rows", "tiles"])
def best_of_all(score, token, largest, ids, status, rows, tiles, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    best, winner = tl.full((), float("-inf"), tl.float64), tl.full((), LAST, tl.int32)
    top = tl.full((), -(2**31), tl.int32)
    for first in range(0, tiles, CHUNK):
        tile = first + tl.arange(0, CHUNK)
        at, inside = tile.to(tl.int64) * rows + row, tile < tiles
        value = tl.load(score + at, mask=inside, other=float("-inf"))
        top = tl.maximum(top, tl.max(tl.load(largest + at, mask=inside, other=-(2**31)), 0))
        here = tl.max(value, 0)
        id = tl.load(token + at, mask=inside, other=LAST)
        mine = tl.min(tl.where(inside & (value == here), id, LAST), 0)
        winner = tl.where(here > best, mine, tl.where(here == best, tl.minimum(winner, mine), winner))
        best = tl.maximum(best, here)
    state = status_of(top)
    tl.store(status + row, state)
    tl.store(ids + row, tl.where(state == STATUSES[0], winner, -1).to(tl.int64))


def sample_head(
    hidden: torch.Tensor, weight: torch.Tensor, key: torch.Tensor, position: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, vocab, device = hidden.shape[0], weight.shape[0], hidden.device
    ids = torch.empty(rows, dtype=torch.int64, device=device)
    status = torch.empty(rows, dtype=torch.int32, device=device)
    if rows == 0:
        return ids, status
    tiles = triton.cdiv(vocab, IDS)
    score = torch.empty((tiles, rows), dtype=torch.float64, device=device)
    token, largest = (torch.empty((tiles, rows), dtype=torch.int32, device=device) for _ in range(2))
    with torch.cuda.device_of(hidden):
        best_of_tiles[(triton.cdiv(rows, ROWS), tiles)](
            hidden,
            weight,
            key,
            position,
            temperature,
            score,
            token,
            largest,
            rows,
            vocab,
            hidden.shape[1],
            hidden.stride(0),
            weight.stride(0),
            ROWS,
            IDS,
            DEPTH,
            **UNFUSED,
        )
        best_of_all[(rows,)](score, token, largest, ids, status, rows, tiles, 1024, **UNFUSED)
    return ids, status
