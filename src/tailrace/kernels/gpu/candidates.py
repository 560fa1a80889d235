"""The tokens of one row still in play, in the memory of its program: x float32, ids int32, ids ascending; and the ways
to have fewer of them. All loops run over chunks, so that any number is exact and a few are quick. Counterpart of
csrc/candidates.cpp.

Masses are sums of integers, UNIT to e^0: in whatever order they are taken, they are the same.

(More than 300 lines: Triton inlines these into one kernel, and they share the layout of one buffer.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.edits import logit_at
from tailrace.kernels.gpu.order import ordered
from tailrace.kernels.gpu.scan import BLOCK, CHUNK, LOG2E

GROUP = tl.constexpr(8)  # blocks that are read together
TILE = tl.constexpr(GROUP.value * BLOCK.value)  # their entries
DEEPEST = tl.constexpr(0x7F800000)  # the bits of a depth of infinity
FEW = tl.constexpr(128)
OTHERS = tl.constexpr(32)  # with which they are compared at a time
PIVOTS = tl.constexpr(16)  # looked at together: a round is as long as a pass over the candidates
LOWEST = tl.constexpr(-3.4028234663852886e38)
UNIT = tl.constexpr(2.0**44)  # times 2^19 tokens is what 63 bits hold


@triton.jit
def reaching(keys, blocks, bound, found):
    """The blocks whose largest key is at least `bound`, ascending, in `found` (int32 [blocks]); how many."""
    count = 0
    tl.debug_barrier()  # of what was listed before, the last may still be read
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        inside = block < blocks
        wanted = inside & (tl.load(keys + block, mask=inside, other=-(2**31)) >= bound)
        place = count + tl.cumsum(wanted.to(tl.int32), 0) - 1
        tl.store(found + place, block, mask=wanted)
        count += tl.sum(wanted.to(tl.int32), 0)
    tl.debug_barrier()
    return count


@triton.jit
def tokens_of(found, count, first, vocab):
    """The tokens of GROUP of the blocks that are listed, and which of them are there."""
    which = first + tl.arange(0, GROUP)
    there = which < count
    block = tl.load(found + which, mask=there, other=0)
    token = tl.reshape(block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], (TILE,))
    inside = tl.reshape(tl.broadcast_to(there[:, None], (GROUP, BLOCK)), (TILE,)) & (token < vocab)
    return token, inside


@triton.jit
def collect(row, keys, blocks, floor, top, x, ids, found):
    """All tokens whose logit is at least `floor`, as distances from `top`, where that is finite; how many."""
    floor = tl.maximum(floor, top + LOWEST)
    count = reaching(keys, blocks, ordered(floor), found)
    n = 0
    for first in range(0, count, GROUP):
        token, inside = tokens_of(found, count, first, row[1])
        value = logit_at(row, token, inside)
        n = append(x, ids, n, value - top, token, inside & (value >= floor))
    return n


@triton.jit
def append(x, ids, n, value, token, wanted):
    """Put those wanted behind the n that are there; how many there are then. A chunk may be put where it or one before
    it was read."""
    place = n + tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.debug_barrier()
    tl.store(x + place, value, mask=wanted)
    tl.store(ids + place, token, mask=wanted)
    tl.debug_barrier()
    return n + tl.sum(wanted.to(tl.int32), 0)


@triton.jit
def within(n, first):
    """Which of a chunk lie before the end."""
    return first + tl.arange(0, CHUNK) < n


@triton.jit
def load(x, n, first):
    """A chunk; beyond the end −inf."""
    at = first + tl.arange(0, CHUNK)
    return tl.load(x + at, mask=at < n, other=float("-inf"))


@triton.jit
def replace(x, n, first, value):
    """Put a chunk where it came from, once all have read it."""
    at = first + tl.arange(0, CHUNK)
    tl.debug_barrier()
    tl.store(x + at, value, mask=at < n)
    tl.debug_barrier()


@triton.jit
def load_ids(ids, n, first):
    at = first + tl.arange(0, CHUNK)
    return tl.load(ids + at, mask=at < n, other=0)


@triton.jit
def load_edited(row, top, ids, n, first):
    """A chunk's logits after the edits, as distances from `top`."""
    inside = within(n, first)
    return logit_at(row, load_ids(ids, n, first), inside) - top


@triton.jit
def weight(x):
    return tl.exp2(x * LOG2E)


@triton.jit
def mass(x):
    """e^x in UNITs, int64; x at most 0."""
    return (weight(x).to(tl.float64) * UNIT).to(tl.int64)


@triton.jit
def total(x, n):
    """Σ e^x, float64."""
    found = tl.zeros((CHUNK,), tl.int64)
    for first in range(0, n, CHUNK):
        found += mass(load(x, n, first))
    return tl.sum(found, 0).to(tl.float64) / UNIT


@triton.jit
def total_squares(x, n):
    """Σ e^2x, float64."""
    found = tl.zeros((CHUNK,), tl.int64)
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        found += mass(value + value)
    return tl.sum(found, 0).to(tl.float64) / UNIT


@triton.jit
def entropy(x, n, whole):
    """Of their distribution, nats, and its second moment Σ x² e^x / Σ e^x. whole: Σ e^x."""
    ones, twos = tl.zeros((CHUNK,), tl.float64), tl.zeros((CHUNK,), tl.float64)
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        w = weight(value).to(tl.float64)
        d = tl.where(w > 0.0, value, 0.0).to(tl.float64)
        ones += w * d
        twos += w * d * d
    return tl.log(whole) - tl.sum(ones, 0) / whole, tl.sum(twos, 0) / whole


@triton.jit
def divide(x, n, by):
    """In double, rounded once."""
    for first in range(0, n, CHUNK):
        replace(x, n, first, (load(x, n, first).to(tl.float64) / by).to(tl.float32))


@triton.jit
def relative_to_largest(x, n):
    """So that the largest is 0."""
    tops = tl.full((CHUNK,), float("-inf"), tl.float32)
    for first in range(0, n, CHUNK):
        tops = tl.maximum(tops, load(x, n, first))
    top = tl.max(tops, 0)
    if top < 0.0:
        for first in range(0, n, CHUNK):
            replace(x, n, first, load(x, n, first) - top)


@triton.jit
def distance_bits(x, center):
    """|center − x| rounded once, as ascending integers. center: double, at most 0; at 0 the order is that of descending
    values."""
    return tl.abs(center - x.to(tl.float64)).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def up_to(x, n, center, k, bits):
    """The mass (in UNITs; with k > 0 the number) of those at most so far from `center`, for each of several distances:
    int64 [PIVOTS]."""
    found = tl.zeros((PIVOTS, CHUNK), tl.int64)
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        here = tl.where(within(n, first), distance_bits(value, center), DEEPEST + 1)
        found += tl.where(here[None, :] <= bits[:, None], counted(value, k)[None, :], 0)
    return tl.sum(found, 1)


@triton.jit
def counted(x, k):
    """What a token adds to what `keep_first` waits for: int64."""
    if k > 0:
        each = tl.full(x.shape, 1, tl.int64)
    else:
        each = mass(x)
    return each


@triton.jit
def boundary(x, n, center, k, target):
    """How far from `center` the k-th is, as bits; with k = 0, the first whose mass, with that of all nearer ones,
    reaches `target`."""
    low, high = tl.full((), 0, tl.int32), tl.full((), DEEPEST, tl.int32)
    while low < high:
        step = (high - low + PIVOTS) // PIVOTS
        pivots = tl.minimum(low + (tl.arange(0, PIVOTS) + 1) * step - 1, high)
        found = up_to(x, n, center, k, pivots)
        enough = tl.where(k > 0, found >= k, found.to(tl.float64) / UNIT >= target)
        short = tl.sum((enough == 0).to(tl.int32), 0)
        low = tl.minimum(low + short * step, high)
        high = tl.minimum(low + step - 1, high)
    return low


@triton.jit
def keep_first(x, ids, n, center, k, target):
    """The k nearest to `center`, of equally near ones those with smaller ids; with k = 0, as many as it takes to reach
    `target`. How many, and how far the last of them is, as bits.

    center 0: the largest. Of a few, each is compared with each; of more, the distance of the last one is found by its
    bits.
    """
    if n <= FEW:
        kept, last = keep_first_of_few(x, ids, n, center, k, target)
    else:
        kept, last = keep_first_of_many(x, ids, n, center, k, target)
    return kept, last


@triton.jit
def keep_first_of_few(x, ids, n, center, k, target):
    at = tl.arange(0, FEW)
    inside = at < n
    value = tl.load(x + at, mask=inside, other=float("-inf"))
    token = tl.load(ids + at, mask=inside, other=0)
    bits = distance_bits(value, center)
    count, before = tl.zeros((FEW,), tl.int32), tl.zeros((FEW,), tl.int64)
    for first in range(0, n, OTHERS):
        other = first + tl.arange(0, OTHERS)
        theirs = tl.load(x + other, mask=other < n, other=float("-inf"))
        far = distance_bits(theirs, center)[None, :]
        # of equally near ones, ids ascend with the places
        ahead = (far < bits[:, None]) | ((far == bits[:, None]) & (other[None, :] < at[:, None]))
        ahead = ahead & (other < n)[None, :]
        count += tl.sum(ahead.to(tl.int32), 1)
        before += tl.sum(tl.where(ahead, mass(theirs)[None, :], 0), 1)
    wanted = inside & tl.where(k > 0, count < k, (count == 0) | (before.to(tl.float64) / UNIT < target))
    last = tl.max(tl.where(wanted, bits, 0), 0)
    return append(x, ids, 0, value, token, wanted), last


@triton.jit
def keep_first_of_many(x, ids, n, center, k, target):
    last = boundary(x, n, center, k, target)
    nearer = tl.max(up_to(x, n, center, k, tl.zeros((PIVOTS,), tl.int32) + last - 1), 0)
    kept, tied = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for first in range(0, n, CHUNK):
        value, inside = load(x, n, first), within(n, first)
        bits = distance_bits(value, center)
        equal = (bits == last) & inside
        wanted = inside & (bits < last)
        if tl.sum(equal.to(tl.int32), 0) > 0:
            # of equally near ones, in the order of their ids, those that it still takes
            rank = tied + tl.cumsum(equal.to(tl.int32), 0)
            each = tl.where(equal, counted(value, k), 0)
            ahead = nearer + tl.cumsum(each, 0) - each
            missing = tl.where(k > 0, ahead < k, (rank == 1) | (ahead.to(tl.float64) / UNIT < target))
            wanted = wanted | (equal & missing)
            tied += tl.sum(equal.to(tl.int32), 0)
            nearer += tl.sum(each, 0)
        kept = append(x, ids, kept, value, load_ids(ids, n, first), wanted)
    return kept, last


@triton.jit
def keep_above(x, ids, n, bound):
    """Those with x ≥ bound, a double; how many."""
    kept = 0
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        wanted = within(n, first) & (value.to(tl.float64) >= bound)
        kept = append(x, ids, kept, value, load_ids(ids, n, first), wanted)
    return kept


@triton.jit
def keep_above_edited(row, top, x, ids, n, bound):
    """Those whose logit lies no more than −bound below the largest there is, or than the largest of those here; how
    many."""
    largest = tl.full((), float("-inf"), tl.float32)
    for first in range(0, n, CHUNK):
        largest = tl.maximum(largest, tl.max(load_edited(row, top, ids, n, first), 0))
    least = tl.minimum(bound, largest.to(tl.float64))
    kept = 0
    for first in range(0, n, CHUNK):
        wanted = within(n, first) & (load_edited(row, top, ids, n, first).to(tl.float64) >= least)
        kept = append(x, ids, kept, load(x, n, first), load_ids(ids, n, first), wanted)
    return kept
