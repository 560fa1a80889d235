"""The parts that both attention kernels (attention.py) share: the rows of a tile, and their online softmax over a range
of positions."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
MOST = tl.constexpr(256)  # chunks: 2^28 positions
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def product(a, b, start):
    """Return start + a · b, fp32."""
    if INTERPRETED:  # it would multiply the bits of bf16 as integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, start, input_precision="ieee")


@triton.jit
def start_of(chunk):
    """Return the first position of a chunk. The host calls it too, as start_of.fn, so it uses no constexpr."""
    return (((chunk % 16 + 16) << (chunk // 16)) - 16) * 256


@triton.jit
def chunks_up_to(position):
    """Return how many chunks begin at or before a position."""
    return tl.sum((start_of(tl.arange(0, MOST)) <= position).to(tl.int32), 0)


@triton.jit
def power_of_two(exponent):
    """Return 2 to the power of whole numbers of at most 0 (or −inf): exact, and 0 below 2^−126. NaN stays NaN."""
    power = ((tl.maximum(exponent, -127.0).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(exponent == exponent, power, exponent)


@triton.jit
def tile_of(
    query,
    query_t,
    query_h,
    begin,
    count,
    tile,
    head,
    before,
    window,
    reach,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the rows of a tile, their query and the positions that they see.

    A row is a token of the sequence and a query head. `inside` marks the rows that exist. The positions run from a
    multiple of BLOCK to the newest one.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM_PAD)
    token, mine = tile * TOKENS + r // GROUP, head * GROUP + r % GROUP
    inside = (r < TOKENS * GROUP) & (token < count)
    from_row = (begin + token).to(tl.int64) * query_t + mine.to(tl.int64) * query_h
    q = tl.load(query + from_row[:, None] + d[None, :], mask=inside[:, None] & (d < DIM)[None, :], other=0.0)
    newest = before + tl.minimum((tile + 1) * TOKENS, count) - 1
    oldest = tl.maximum(first_seen(before + tile * TOKENS, window, reach), 0) // BLOCK * BLOCK
    return token, mine, inside, q, oldest, newest


@triton.jit
def bits_of(selected, selected_t, selected_h, begin, count, token, head):
    """Return where the words of selected positions begin, for each row of a tile."""
    return selected + (begin + tl.minimum(token, count - 1)).to(tl.int64) * selected_t + head * selected_h


@triton.jit
def first_seen(at, window, reach):
    """Return the oldest position that a token at `at` sees. It may be negative."""
    return tl.maximum(at - window + 1, at // reach * reach)


@triton.jit
def over(
    q,
    at,
    first,
    last,
    table,
    keys,
    values,
    bits,
    head,
    scale,
    window,
    reach,
    softcap,
    CAPPED: tl.constexpr,
    SELECTED: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the online softmax of q [ROWS, DIM_PAD] over the positions first … last − 1.

    The tokens of q are at positions `at`; first is a multiple of BLOCK. bits: where the words of each row's selected
    positions begin, if SELECTED. Returns top, Σ weight and Σ weight · value. top
    is a whole number that is not less than the largest score in units of log 2. So sums are only multiplied by powers
    of two. Such products are exact, so it does not matter when they are taken.
    """
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, VALUE_PAD), tl.float32)
    d, e = tl.arange(0, DIM_PAD), tl.arange(0, VALUE_PAD)
    oldest = first_seen(at, window, reach)
    for start in range(first, last, BLOCK):
        n = start + tl.arange(0, BLOCK)
        there = n < last  # memory behind the end belongs to no token and may hold NaN
        block = tl.load(table + n // SIZE, mask=there, other=0).to(tl.int64)
        place = block * (HEADS * SIZE) + head * SIZE + n % SIZE
        k = tl.load(keys + place[None, :] * DIM + d[:, None], mask=there[None, :] & (d < DIM)[:, None], other=0.0)
        inside = there[:, None] & (e < VALUE_DIM)[None, :]
        v = tl.load(values + place[:, None] * VALUE_DIM + e[None, :], mask=inside, other=0.0)
        score = product(q, k, tl.zeros((ROWS, BLOCK), tl.float32)) * scale
        if CAPPED:
            small = tl.exp2(tl.abs(score / softcap) * LOG2E * -2.0)
            score = tl.where(score < 0.0, -softcap, softcap) * ((1.0 - small) / (1.0 + small))
        seen = there[None, :] & (n[None, :] <= at[:, None]) & (n[None, :] >= oldest[:, None])
        if SELECTED:
            word = tl.load(bits[:, None] + (n // 64)[None, :], mask=there[None, :], other=0)
            seen = seen & (((word >> (n % 64)[None, :].to(tl.int64)) & 1) != 0)
        score = tl.where(seen, score * LOG2E, float("-inf"))
        higher = tl.maximum(top, tl.ceil(tl.max(score, 1)))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # for a row that sees no position yet
        weight = tl.exp2(score - base[:, None])
        shrink = power_of_two(top - base)
        mass = mass * shrink + tl.sum(weight, 1)
        mixed = product(weight.to(v.dtype), v, mixed * shrink[:, None])
        top = higher
    return top, mass, mixed


@triton.jit
def over_chunks(
    q,
    at,
    oldest,
    newest,
    sink,
    table,
    keys,
    values,
    bits,
    head,
    scale,
    window,
    reach,
    softcap,
    CAPPED: tl.constexpr,
    SELECTED: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute `over` for the positions oldest … newest, chunk by chunk. The chunks' sums are added in their order.

    sink: scores in units of log 2 that have a share of the mass, or −inf.
    """
    top = tl.ceil(sink)
    mass = tl.exp2(sink - tl.where(top == float("-inf"), 0.0, top))
    mixed = tl.zeros((ROWS, VALUE_PAD), tl.float32)
    for chunk in range(chunks_up_to(oldest) - 1, chunks_up_to(newest)):
        first, last = tl.maximum(start_of(chunk), oldest), tl.minimum(start_of(chunk + 1), newest + 1)
        own_top, own_mass, own_mixed = over(
            q,
            at,
            first,
            last,
            table,
            keys,
            values,
            bits,
            head,
            scale,
            window,
            reach,
            softcap,
            CAPPED,
            SELECTED,
            HEADS,
            SIZE,
            DIM,
            VALUE_DIM,
            ROWS,
            DIM_PAD,
            VALUE_PAD,
            BLOCK,
        )
        higher = tl.maximum(top, own_top)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        before, now = power_of_two(top - base), power_of_two(own_top - base)
        mass = mass * before + own_mass * now
        mixed = mixed * before[:, None] + own_mixed * now[:, None]
        top = higher
    return top, mass, mixed
