"""Gumbel-max over candidates, and over a whole row that has only temperatures. Counterpart of csrc/sample/draw.cpp."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels import constants
from tailrace.kernels.gpu.candidates import GROUP, UNIT, collect, load, load_ids, mass, reaching, tokens_of, within
from tailrace.kernels.gpu.edits import keys_at, logit_at, raw_at
from tailrace.kernels.gpu.noise import GROUP as SHARERS
from tailrace.kernels.gpu.noise import gumbel_at, hot_bits
from tailrace.kernels.gpu.order import NOBODY, id_of, key_of, ordered, packed, power_of, value_of
from tailrace.kernels.gpu.scan import BLOCK, CHUNK

DRAW = tl.constexpr(constants.DRAW_STREAM)
ACCEPT = tl.constexpr(constants.ACCEPT_STREAM)
RESIDUAL = tl.constexpr(constants.RESIDUAL_STREAM)
BY_BLOCK = tl.constexpr(constants.BLOCK_STREAM)
WIDE = tl.constexpr(2048)  # groups that are read together
COLD = tl.constexpr(constants.COLD)


@triton.jit
def first_of(row, blocks, keys, key):
    """Return the smallest id whose logit has this key, the largest of the row."""
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
    """Return the best of the candidates except `excluded`, in the form of order.packed."""
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
    """Write the row's hot ids to `ids`, ascending. Return how many."""
    groups = tl.cdiv(vocab, SHARERS)
    n = 0
    for first in range(0, groups, WIDE):
        group = first + tl.arange(0, WIDE)
        bits = hot_bits(key, position, stream, group.to(tl.uint32))
        there = tl.minimum(tl.maximum(vocab - group * SHARERS, 0), SHARERS)  # ids of the last group may not exist
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
    """Return the winner among the row's likeliest tokens, whose masses reach `target`; with target inf, among all
    tokens.

    x = (l − max) / temperature. Only hot tokens have noise above COLD. So no other token matters whose x + COLD is
    below the best score of the hot tokens. The end of the nucleus is not searched for; the winner is tested instead. If
    it lies outside the nucleus, so do all tokens behind it, and the tokens ahead of it compete again.
    """
    best = tl.full((), NOBODY, tl.int64)
    behind = best  # tokens from this one on, by value and id, are out
    wanted = tl.full((), 1, tl.int32)
    while wanted == 1:
        # First the likeliest token, which always counts; then the hot ones; then those that may still win.
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
                # A little deeper, because x is rounded.
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
    """Return logits as x, rounded as by candidates.divide."""
    return ((value - top).to(tl.float64) / temperature).to(tl.float32)


@triton.jit
def mass_ahead(row, keys, blocks, top, temperature, limit, found):
    """Return Σ e^x of the tokens before the one whose value and id are `limit`."""
    count = reaching(keys, blocks, key_of(limit), found)
    whole = tl.full((), 0, tl.int64)
    for first in range(0, count, GROUP):
        token, inside = tokens_of(found, count, first, row[1])
        value = logit_at(row, token, inside)
        inside = inside & (packed(ordered(value), token) > limit)
        whole += tl.sum(tl.where(inside, mass(relative(value, top, temperature)), 0), 0)
    return whole.to(tl.float64) / UNIT
