"""The one streaming pass over the rows: the maximum of each block of 256 entries, and mass and moments if a program
needs them.

Blocks are the same however a row is split between programs, and each block has sums of its own. So a row's numbers
depend neither on the split nor on the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.columns import SLOT, column
from tailrace.kernels.gpu.edits import edited_blocks, is_edited, logit_at, raw_at, row_at
from tailrace.kernels.gpu.order import INF_KEY, NONE_KEY, ordered, value_of
from tailrace.kernels.gpu.program import MASS, MOMENTS, MOMENTS_RAW, RAW, RICH, SCALE, SIGMA, SQUARES, WANTS, number

BLOCK = tl.constexpr(256)
# An entry per thread of the kernels with a program per row, whose code should be as short as possible.
CHUNK = tl.constexpr(512)
LOG2E = tl.constexpr(1.4426950408889634)

# Planes of `sums`, float32 [PLANES, rows, blocks], `plane` entries each. A plane is written only if it is needed.
OF_MASS = tl.constexpr(0)  # With the next two: Σ e^d, Σ d e^d, Σ d² e^d; or Σ e^d, Σ e^2d.
OF_SIGMA = tl.constexpr(3)  # Number, Σ d, Σ d².
OF_RAW = tl.constexpr(6)  # Like OF_MASS, before the edits.
PLANES = 9


@triton.jit
def scan_rows(step, tables, work, blocks, MORE: tl.constexpr, TILE: tl.constexpr):
    """Write work.keys, raw_keys and sums.

    MORE: do the rows that have edits or need more than maxima and mass; without it, the other rows. So the needs of one
    row cost others no registers.
    """
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    record = tables.records + column(step, SLOT, row) * tables.fields
    wants, scale = tl.load(record + WANTS), number(record, SCALE).to(tl.float32)
    here = row_at(step, tables, row)
    if (is_edited(here) | ((wants & RICH) != 0)) == MORE:
        for tile in range(part, tl.cdiv(blocks, TILE), parts):
            block = tile * TILE + tl.arange(0, TILE)
            ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
            inside = ids < step.vocab
            raw = raw_at(here, ids, inside)
            x, each = raw, ordered(raw)
            if MORE:
                if is_edited(here):
                    x = edited_blocks(here, block, raw, BLOCK, TILE)
                    # An entry of NaN or +inf keeps its key: no edit removes it.
                    each = tl.where(each >= INF_KEY, each, ordered(x))
            key, out, there = tl.max(each, 1), row * blocks + block, block < blocks
            tl.store(work.keys + out, key, mask=there)
            at, plane = work.sums + out, work.plane
            if (wants & MASS) != 0:
                weigh(at + OF_MASS * plane, plane, x, key, scale, wants & MOMENTS, wants & SQUARES, there, MORE)
            if MORE:
                if (wants & SIGMA) != 0:
                    d = x - finite(key)[:, None]
                    counted = d > float("-inf")
                    d = tl.where(counted, d, 0.0)
                    tl.store(at + OF_SIGMA * plane, tl.sum(counted.to(tl.float32), 1), mask=there)
                    tl.store(at + (OF_SIGMA + 1) * plane, tl.sum(d, 1), mask=there)
                    tl.store(at + (OF_SIGMA + 2) * plane, tl.sum(d * d, 1), mask=there)
                if (wants & RAW) != 0:
                    raw_key = tl.max(ordered(raw), 1)
                    tl.store(work.raw_keys + out, raw_key, mask=there)
                    weigh(at + OF_RAW * plane, plane, raw, raw_key, 1.0, wants & MOMENTS_RAW, 0, there, True)


@triton.jit
def finite(key):
    """Return the value of a block's largest key; 0 if it is not finite."""
    return tl.where((key > NONE_KEY) & (key < INF_KEY), value_of(key), 0.0)


@triton.jit
def weigh(at, plane, x, key, scale, moments, squares, there, MORE: tl.constexpr):
    d = (x - finite(key)[:, None]) * scale
    w = tl.exp2(d * LOG2E)
    tl.store(at, tl.sum(w, 1), mask=there)
    if MORE:
        if squares != 0:
            tl.store(at + plane, tl.sum(w * w, 1), mask=there)
        if moments != 0:
            d = tl.where(d > float("-inf"), d, 0.0)
            tl.store(at + plane, tl.sum(w * d, 1), mask=there)
            tl.store(at + 2 * plane, tl.sum(w * d * d, 1), mask=there)


@triton.jit
def highest(keys, blocks):
    """Return the largest key of a row."""
    found = tl.full((), -(2**31), tl.int32)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        found = tl.maximum(found, tl.max(tl.load(keys + block, mask=block < blocks, other=-(2**31)), 0))
    return found


@triton.jit
def mass_of(keys, sums, plane, blocks, top, scale, moments):
    """Return a row's Σ e^d, Σ d e^d and Σ d² e^d from its blocks' sums, d = (l − top) · scale. The latter two need
    `moments`."""
    whole, one, two = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        key = tl.load(keys + block, mask=block < blocks, other=NONE_KEY)
        inside = key > NONE_KEY
        below = (tl.where(inside, value_of(key), top).to(tl.float64) - top) * scale
        share, each = tl.exp(below), tl.load(sums + block, mask=inside, other=0.0).to(tl.float64)
        whole += tl.sum(each * share, 0)
        if moments:
            d = tl.load(sums + plane + block, mask=inside, other=0.0).to(tl.float64)
            dd = tl.load(sums + 2 * plane + block, mask=inside, other=0.0).to(tl.float64)
            below = tl.where(share > 0.0, below, 0.0)
            one += tl.sum(share * (d + below * each), 0)
            two += tl.sum(share * (dd + 2.0 * below * d + below * below * each), 0)
    return whole, one, two


@triton.jit
def squares_of(keys, sums, plane, blocks, top, scale):
    """Return a row's Σ e^2d from its blocks' sums, d = (l − top) · scale."""
    found = tl.full((), 0.0, tl.float64)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        key = tl.load(keys + block, mask=block < blocks, other=NONE_KEY)
        inside = key > NONE_KEY
        share = tl.exp((tl.where(inside, value_of(key), top).to(tl.float64) - top) * scale)
        found += tl.sum(share * share * tl.load(sums + plane + block, mask=inside, other=0.0).to(tl.float64), 0)
    return found


@triton.jit
def sigma_of(row, keys, sums, plane, blocks, top):
    """Return the standard deviation of a row's finite logits."""
    count, one, two = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        key = tl.load(keys + block, mask=block < blocks, other=NONE_KEY)
        inside = key > NONE_KEY
        below = tl.where(inside, value_of(key), top).to(tl.float64) - top
        n = tl.load(sums + block, mask=inside, other=0.0).to(tl.float64)
        d = tl.load(sums + plane + block, mask=inside, other=0.0).to(tl.float64)
        dd = tl.load(sums + 2 * plane + block, mask=inside, other=0.0).to(tl.float64)
        count += tl.sum(n, 0)
        one += tl.sum(d + n * below, 0)
        two += tl.sum(dd + 2.0 * below * d + n * below * below, 0)
    mean = one / tl.maximum(count, 1.0)
    variance = two / tl.maximum(count, 1.0) - mean * mean
    if (variance > 1e-30) & (variance < 1e36):
        found = tl.sqrt(variance)
    else:  # the squares have left the range of float32
        found = sigma_in_double(row, top)
    return found


@triton.jit
def sigma_in_double(row, top):
    """Return the standard deviation for logits so near or so far apart that squares in float32 do not suffice."""
    count, one, two = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for first in range(0, row[1], CHUNK):
        d, counted = depths_at(row, first, top)
        count += tl.sum(counted.to(tl.float64), 0)
        one += tl.sum(d, 0)
    mean = one / tl.maximum(count, 1.0)
    for first in range(0, row[1], CHUNK):
        d, counted = depths_at(row, first, top)
        two += tl.sum(tl.where(counted, (d - mean) * (d - mean), 0.0), 0)
    return tl.sqrt(two / tl.maximum(count, 1.0))


@triton.jit
def depths_at(row, first, top):
    """Return a chunk's logits after the edits as distances from `top`, in double, and which of them are finite.

    The others are 0.
    """
    token = first + tl.arange(0, CHUNK)
    value = logit_at(row, token, token < row[1])
    counted = value > float("-inf")
    return tl.where(counted, value.to(tl.float64) - top, 0.0), counted
