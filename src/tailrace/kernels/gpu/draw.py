"""Gumbel-max over candidates, and over a whole row of which only the temperature is changed; counterpart of
csrc/draw.cpp."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.candidates import GROUP, UNIT, collect, load, load_ids, mass, reaching, tokens_of, within
from tailrace.kernels.gpu.edits import keys_at, logit_at, raw_at
from tailrace.kernels.gpu.noise import GROUP as SHARERS
from tailrace.kernels.gpu.noise import gumbel_at, hot_bits
from tailrace.kernels.gpu.order import NOBODY, id_of, key_of, ordered, packed, power_of, value_of
from tailrace.kernels.gpu.scan import BLOCK, CHUNK

DRAW, ACCEPT, RESIDUAL, BY_BLOCK = (
    tl.constexpr(0),
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(64),
)  # streams; csrc/draw.h
WIDE = tl.constexpr(2048)  # groups that are looked at together
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
    """The best of the candidates but `excluded`, as order.packed has it."""
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
    groups = tl.cdiv(vocab, SHARERS)
    n = 0
    for first in range(0, groups, WIDE):
        group = first + tl.arange(0, WIDE)
        bits = hot_bits(key, position, stream, group.to(tl.uint32))
        there = tl.minimum(tl.maximum(vocab - group * SHARERS, 0), SHARERS)  # ids of the last group may lie beyond
        mine = (bits & 0xFFFF).to(tl.int32) & ((1 << there) - 1)
        count = (mine & 0x5555) + ((mine >> 1) & 0x5555)
        count = (count & 0x3333) + ((count >> 2) & 0x3333)
        count = (count & 0x0F0F) + ((count >> 4) & 0x0F0F)
        count = (count & 0xFF) + (count >> 8)
        place = n + tl.cumsum(count, 0) - count
        for _ in range(tl.max(count, 0)):
            lowest = mine & -mine
            tl.store(ids + place, group * SHARERS + power_of(lowest), mask=mine != 0)
            place, mine = place + 1, mine & (mine - 1)
        n += tl.sum(count, 0)
    tl.debug_barrier()
    return n


@triton.jit
def winner_of_all(row, blocks, keys, top, temperature, target, x, ids, found, likeliest, key, position, stream):
    """The winner of the row's likeliest tokens, whose masses reach `target` (of all where that is inf), x = (l − max) /
    temperature.

    Only hot tokens have noise above COLD, so of the others none counts whose x + COLD is below the best of the hot
    ones. And not where the nucleus ends is looked for, but whether the winner lies in it: if not, nothing behind it
    does, and those ahead of it compete.
    """
    best = tl.full((), NOBODY, tl.int64)
    behind = best  # nothing from here on counts, by value and id
    wanted = tl.full((), 1, tl.int32)
    while wanted == 1:
        # the likeliest, which always counts; the hot ones; those that may still win
        best, wanted = tl.full((), NOBODY, tl.int64), wanted * 0
        tl.store(x, 0.0)
        tl.store(ids, likeliest)
        tl.debug_barrier()
        n = tl.full((), 1, tl.int32)
        for part in range(3):
            if part == 1:
                n = hot_ids(row[1], key, position, stream, ids)
            elif part == 2:
                least = (value_of(key_of(best)).to(tl.float64) - COLD) * temperature
                # a little deeper: x is rounded
                floor = (top + tl.minimum(least, 0.0) * (1.0 + 1e-6) - 1e-6).to(tl.float32)
                n = collect(row, keys, blocks, floor, top, x, ids, found)
            for first in range(0, n, CHUNK):
                token, inside = load_ids(ids, n, first), within(n, first)
                inside = inside & (token < row[1])
                value = logit_at(row, token, inside)
                inside = inside & (packed(ordered(value), token) > behind)
                score = scored(relative(value, top, temperature), token, inside, key, position, stream)
                best = tl.maximum(best, tl.max(score, 0))
            tl.debug_barrier()
        if target < float("inf"):
            token = id_of(best).to(tl.int32)
            limit = packed(ordered(logit_at(row, token, token >= 0)), token)
            if (token != likeliest) & (mass_ahead(row, keys, blocks, top, temperature, limit, found) >= target):
                behind, wanted = limit, wanted + 1
    return best


@triton.jit
def relative(value, top, temperature):
    """Logits as x, rounded as candidates.divide has them."""
    return ((value - top).to(tl.float64) / temperature).to(tl.float32)


@triton.jit
def mass_ahead(row, keys, blocks, top, temperature, limit, found):
    """Σ e^x of the tokens before one, whose value and id are `limit`."""
    count = reaching(keys, blocks, key_of(limit), found)
    whole = tl.full((), 0, tl.int64)
    for first in range(0, count, GROUP):
        token, inside = tokens_of(found, count, first, row[1])
        value = logit_at(row, token, inside)
        inside = inside & (packed(ordered(value), token) > limit)
        whole += tl.sum(tl.where(inside, mass(relative(value, top, temperature)), 0), 0)
    return whole.to(tl.float64) / UNIT
