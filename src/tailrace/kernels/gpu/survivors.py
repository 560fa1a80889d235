"""The tokens of one row still in play, in the memory of its program: x float32, ids int32, ids ascending; and the ways to have fewer of
them. All loops run over chunks, so that any number is exact and a few are quick. Counterpart of csrc/survivors.cpp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.order import ordered

BLOCK = tl.constexpr(256)  # of scan.py
CHUNK = tl.constexpr(1024)
GROUP = tl.constexpr(4)  # blocks in a chunk
DEEPEST = tl.constexpr(0x7F800000)  # the depth bits of −inf
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def collect(at, vocab, keys, blocks, floor, top, x, ids, found):
    """All tokens whose logit is at least `floor`, as distances from `top`; how many. found: scratch, int32 [blocks]."""
    bound = ordered(floor)
    count = 0
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        inside = block < blocks
        wanted = inside & (tl.load(keys + block, mask=inside, other=-(2**31)) >= bound)
        place = count + tl.cumsum(wanted.to(tl.int32), 0) - 1
        tl.store(found + place, block, mask=wanted)
        count += tl.sum(wanted.to(tl.int32), 0)
    tl.debug_barrier()
    n = 0
    for first in range(0, count, GROUP):
        which = first + tl.arange(0, GROUP)
        there = which < count
        block = tl.load(found + which, mask=there, other=0)
        token = tl.reshape(block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], (CHUNK,))
        inside = tl.reshape(tl.broadcast_to(there[:, None], (GROUP, BLOCK)), (CHUNK,)) & (token < vocab)
        value = tl.load(at + token, mask=inside, other=float("-inf")).to(tl.float32)
        n = append(x, ids, n, value - top, token, inside & (value >= floor))
    return n


@triton.jit
def append(x, ids, n, value, token, wanted):
    """Put those wanted behind the n that are there; how many there are then. A chunk may be put where it or one before it was read."""
    place = n + tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.debug_barrier()
    tl.store(x + place, value, mask=wanted)
    tl.store(ids + place, token, mask=wanted)
    tl.debug_barrier()
    return n + tl.sum(wanted.to(tl.int32), 0)


@triton.jit
def load(x, n, first):
    """A chunk; beyond the end −inf."""
    at = first + tl.arange(0, CHUNK)
    return tl.load(x + at, mask=at < n, other=float("-inf"))


@triton.jit
def load_ids(ids, n, first):
    at = first + tl.arange(0, CHUNK)
    return tl.load(ids + at, mask=at < n, other=0)


@triton.jit
def load_raw(at, top, ids, n, first):
    """A chunk's logits as the model gave them, as distances from `top`."""
    inside = first + tl.arange(0, CHUNK) < n
    return tl.load(at + load_ids(ids, n, first), mask=inside, other=float("-inf")).to(tl.float32) - top


@triton.jit
def weight(x):
    return tl.exp2(x * LOG2E)


@triton.jit
def depth_bits(x):
    """Ascending integers for descending values that are at most 0."""
    return tl.where(x < 0.0, -x, 0.0).to(tl.int32, bitcast=True)


@triton.jit
def divide(x, n, by):
    """In double, rounded once."""
    for first in range(0, n, CHUNK):
        at = first + tl.arange(0, CHUNK)
        tl.store(x + at, (load(x, n, first).to(tl.float64) / by).to(tl.float32), mask=at < n)
    tl.debug_barrier()


@triton.jit
def total(x, n):
    """Σ e^x, float64."""
    found = tl.full((), 0.0, tl.float64)
    for first in range(0, n, CHUNK):
        found += tl.sum(weight(load(x, n, first)), 0).to(tl.float64)
    return found


@triton.jit
def up_to(x, n, bits):
    """Number and mass of those at most so deep."""
    count, mass = 0, tl.full((), 0.0, tl.float64)
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        there = (depth_bits(value) <= bits) & (first + tl.arange(0, CHUNK) < n)
        count += tl.sum(there.to(tl.int32), 0)
        mass += tl.sum(tl.where(there, weight(value), 0.0), 0).to(tl.float64)
    return count, mass


@triton.jit
def keep_first(x, ids, n, k, target):
    """The first k in descending order, of equal ones those with smaller ids; with k = 0, those whose mass reaches `target`. How many.

    The depth of the last one is found by bisection of its bits.
    """
    low, high = tl.full((), 0, tl.int32), tl.full((), DEEPEST, tl.int32)
    while low < high:
        middle = low + (high - low) // 2
        count, mass = up_to(x, n, middle)
        enough = tl.where(k > 0, count >= k, mass >= target)
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    count, mass = up_to(x, n, low - 1)
    each = weight(-(low.to(tl.float32, bitcast=True))).to(tl.float64)
    missing = tl.where(each > 0.0, (target - mass) / each, 0.0)
    ties = tl.where(k > 0, k - count, tl.ceil(tl.minimum(tl.maximum(missing, 1.0), 1e9)).to(tl.int32))
    kept, tied = 0, 0
    for first in range(0, n, CHUNK):
        value, inside = load(x, n, first), first + tl.arange(0, CHUNK) < n
        bits = depth_bits(value)
        equal = (bits == low) & inside
        rank = tied + tl.cumsum(equal.to(tl.int32), 0)
        wanted = inside & ((bits < low) | (equal & (rank <= ties)))
        kept = append(x, ids, kept, value, load_ids(ids, n, first), wanted)
        tied += tl.sum(equal.to(tl.int32), 0)
    return kept


@triton.jit
def keep_above(x, ids, n, bound):
    """Those with x ≥ bound, a double; how many."""
    kept = 0
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        wanted = (first + tl.arange(0, CHUNK) < n) & (value.to(tl.float64) >= bound)
        kept = append(x, ids, kept, value, load_ids(ids, n, first), wanted)
    return kept


@triton.jit
def keep_above_raw(at, top, x, ids, n, bound):
    """Those whose logit lies no more than −bound below the largest there is, or than the largest of those here; how many."""
    largest = tl.full((), float("-inf"), tl.float32)
    for first in range(0, n, CHUNK):
        largest = tl.maximum(largest, tl.max(load_raw(at, top, ids, n, first), 0))
    least = tl.minimum(bound, largest.to(tl.float64))
    kept = 0
    for first in range(0, n, CHUNK):
        wanted = (first + tl.arange(0, CHUNK) < n) & (load_raw(at, top, ids, n, first).to(tl.float64) >= least)
        kept = append(x, ids, kept, load(x, n, first), load_ids(ids, n, first), wanted)
    return kept
