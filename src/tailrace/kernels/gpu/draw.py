"""Gumbel-max over survivors, and over a whole row of which only the temperature is changed; counterpart of csrc/draw.cpp."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.edits import keys_at, logit_at, raw_at
from tailrace.kernels.gpu.noise import GROUP, gumbel_at, hot_bits
from tailrace.kernels.gpu.order import NOBODY, key_of, ordered, packed, value_of
from tailrace.kernels.gpu.scan import BLOCK, CHUNK
from tailrace.kernels.gpu.survivors import collect, load, load_ids, within

DRAW, ACCEPT, RESIDUAL, BY_BLOCK = (
    tl.constexpr(0),
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(64),
)  # streams; csrc/draw.h
COLD = tl.constexpr(5.545)  # no noise of a token that is not hot is above this (csrc/noise.h)


@triton.jit
def first_of(row, blocks, keys, key):
    """The smallest id whose logit has this key, the largest of the row."""
    best = tl.full((), 2**31 - 1, tl.int32)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        holds = tl.load(keys + block, mask=block < blocks, other=-(2**31)) == key
        best = tl.minimum(best, tl.min(tl.where(holds, block, 2**31 - 1), 0))
    ids = best * BLOCK + tl.arange(0, BLOCK)
    inside = ids < row[1]
    mine, _ = keys_at(row, ids, inside, raw_at(row, ids, inside))
    return tl.min(tl.where(inside & (mine == key), ids, 2**31 - 1), 0)


@triton.jit
def winner(x, ids, n, key, position, stream, excluded):
    """The best of the survivors but `excluded`, as order.packed has it."""
    best = tl.full((), NOBODY, tl.int64)
    for first in range(0, n, CHUNK):
        token, inside = load_ids(ids, n, first), within(n, first)
        score = scored(load(x, n, first), token, inside & (token != excluded), key, position, stream)
        best = tl.maximum(best, tl.max(score, 0))
    return best


@triton.jit
def scored(x, token, inside, key, position, stream):
    score = x + gumbel_at(key, position, stream, token.to(tl.uint32))
    return tl.where(inside & (x > float("-inf")), packed(ordered(score), token), NOBODY)


@triton.jit
def hot_ids(vocab, key, position, stream, ids):
    """The row's hot ids, ascending; how many."""
    groups = tl.cdiv(vocab, GROUP)
    n = 0
    for first in range(0, groups, CHUNK):
        group = first + tl.arange(0, CHUNK)
        bits = hot_bits(key, position, stream, group.to(tl.uint32))
        there = tl.minimum(tl.maximum(vocab - group * GROUP, 0), GROUP)  # ids of the last group may lie beyond
        mine = (bits & 0xFFFF).to(tl.int32) & ((1 << there) - 1)
        count = (mine & 0x5555) + ((mine >> 1) & 0x5555)
        count = (count & 0x3333) + ((count >> 2) & 0x3333)
        count = (count & 0x0F0F) + ((count >> 4) & 0x0F0F)
        count = (count & 0xFF) + (count >> 8)
        place = n + tl.cumsum(count, 0) - count
        for bit in range(16):
            is_set = (mine >> bit) & 1
            token = group * GROUP + bit
            tl.store(ids + place, token, mask=is_set == 1)
            place += is_set
        n += tl.sum(count, 0)
    tl.debug_barrier()
    return n


@triton.jit
def winner_of_all(row, blocks, keys, top, temperature, x, ids, found, likeliest, key, position, stream):
    """The winner of the whole row, x = (l − max) / temperature: only hot tokens have noise above COLD, so of the others none counts whose
    x + COLD is below the best of the hot ones."""
    zero = tl.zeros((CHUNK,), tl.float32)
    alone = scored(zero, likeliest + tl.zeros((CHUNK,), tl.int32), tl.arange(0, CHUNK) == 0, key, position, stream)
    best = tl.max(alone, 0)
    n = hot_ids(row[1], key, position, stream, ids)
    for first in range(0, n, CHUNK):
        token, inside = load_ids(ids, n, first), within(n, first)
        inside = inside & (token < row[1])
        value = logit_at(row, token, inside) - top
        score = scored((value.to(tl.float64) / temperature).to(tl.float32), token, inside, key, position, stream)
        best = tl.maximum(best, tl.max(score, 0))
    tl.debug_barrier()
    least = (value_of(key_of(best)).to(tl.float64) - COLD) * temperature
    if least <= 0.0:
        # a little deeper: x is rounded
        n = collect(row, keys, blocks, (top + least * (1.0 + 1e-6) - 1e-6).to(tl.float32), top, x, ids, found)
        for first in range(0, n, CHUNK):
            token, inside = load_ids(ids, n, first), within(n, first)
            value = (load(x, n, first).to(tl.float64) / temperature).to(tl.float32)
            best = tl.maximum(best, tl.max(scored(value, token, inside, key, position, stream), 0))
    return best
