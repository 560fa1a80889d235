"""The candidates of one row, that is the tokens that can still be drawn, and functions that remove some of them.

Candidates lie in the memory of the row's program: x float32, and ids int32 in ascending order. All loops run over
chunks. So every number of candidates is exact, and small numbers are fast. Counterpart of csrc/sample/candidates.cpp.

Masses are sums of integers, where e^0 is UNIT. So they do not depend on the order of the sum.

(More than 300 lines: Triton inlines these into one kernel, and they share the layout of one buffer.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.edits import logit_at
from tailrace.kernels.gpu.order import ordered
from tailrace.kernels.gpu.scan import BLOCK, CHUNK, LOG2E

GROUP = tl.constexpr(8)  # blocks that are read together
TILE = tl.constexpr(GROUP.value * BLOCK.value)  # the entries of GROUP blocks
DEEPEST = tl.constexpr(0x7F800000)  # the bits of a depth of infinity
FEW = tl.constexpr(128)
OTHERS = tl.constexpr(32)  # candidates that one is compared with at a time
PIVOTS = tl.constexpr(16)  # distances that are tested together: a round takes as long as a pass over the candidates
LOWEST = tl.constexpr(-3.4028234663852886e38)
UNIT = tl.constexpr(2.0**44)  # with 2^19 tokens the sum still fits into 63 bits


@triton.jit
def reaching(keys, blocks, bound, found):
    """Write the blocks whose largest key is at least `bound` to `found` (int32 [blocks]), ascending. Return their
    number."""
    count = 0
    tl.debug_barrier()  # a thread may still read the last of the blocks listed before
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
    """Return the tokens of GROUP listed blocks, and which of these entries are tokens."""
    which = first + tl.arange(0, GROUP)
    there = which < count
    block = tl.load(found + which, mask=there, other=0)
    token = tl.reshape(block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], (TILE,))
    inside = tl.reshape(tl.broadcast_to(there[:, None], (GROUP, BLOCK)), (TILE,)) & (token < vocab)
    return token, inside


@triton.jit
def collect(row, keys, blocks, floor, top, x, ids, found):
    """Collect all tokens whose logit is finite and at least `floor`, as distances from `top`. Return their number."""
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
    """Append the selected values after the n stored ones. Return the new count.

    A chunk may overwrite itself or an earlier chunk, but no later one.
    """
    place = n + tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.debug_barrier()
    tl.store(x + place, value, mask=wanted)
    tl.store(ids + place, token, mask=wanted)
    tl.debug_barrier()
    return n + tl.sum(wanted.to(tl.int32), 0)


@triton.jit
def within(n, first):
    """Return which entries of a chunk lie before the end."""
    return first + tl.arange(0, CHUNK) < n


@triton.jit
def load(x, n, first):
    """Return a chunk; −inf beyond the end."""
    at = first + tl.arange(0, CHUNK)
    return tl.load(x + at, mask=at < n, other=float("-inf"))


@triton.jit
def replace(x, n, first, value):
    """Write a chunk back to where it was read, after all threads have read it."""
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
    """Return a chunk's logits after the edits, as distances from `top`."""
    inside = within(n, first)
    return logit_at(row, load_ids(ids, n, first), inside) - top


@triton.jit
def weight(x):
    return tl.exp2(x * LOG2E)


@triton.jit
def mass(x):
    """Return e^x in UNITs, int64, for x of at most 0."""
    return (weight(x).to(tl.float64) * UNIT).to(tl.int64)


@triton.jit
def total(x, n):
    """Return Σ e^x, float64."""
    found = tl.zeros((CHUNK,), tl.int64)
    for first in range(0, n, CHUNK):
        found += mass(load(x, n, first))
    return tl.sum(found, 0).to(tl.float64) / UNIT


@triton.jit
def total_squares(x, n):
    """Return Σ e^2x, float64."""
    found = tl.zeros((CHUNK,), tl.int64)
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        found += mass(value + value)
    return tl.sum(found, 0).to(tl.float64) / UNIT


@triton.jit
def entropy(x, n, whole):
    """Return the entropy of the candidates' distribution, nats, and its second moment Σ x² e^x / Σ e^x. whole: Σ
    e^x."""
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
    """Divide x by a number, in double, rounded once."""
    for first in range(0, n, CHUNK):
        replace(x, n, first, (load(x, n, first).to(tl.float64) / by).to(tl.float32))


@triton.jit
def relative_to_largest(x, n):
    """Shift x so that the largest is 0."""
    tops = tl.full((CHUNK,), float("-inf"), tl.float32)
    for first in range(0, n, CHUNK):
        tops = tl.maximum(tops, load(x, n, first))
    top = tl.max(tops, 0)
    if top < 0.0:
        for first in range(0, n, CHUNK):
            replace(x, n, first, load(x, n, first) - top)


@triton.jit
def distance_bits(x, center):
    """Return |center − x|, rounded once, as the bits of a float32: integers in the same order.

    center: double, at most 0. With 0 the order is that of descending values.
    """
    return tl.abs(center - x.to(tl.float64)).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def up_to(x, n, center, k, bits):
    """Return the mass of the candidates within each of several distances of `center`, int64 [PIVOTS].

    The mass is in UNITs; with k > 0 it is their number. bits: the distances.
    """
    found = tl.zeros((PIVOTS, CHUNK), tl.int64)
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        here = tl.where(within(n, first), distance_bits(value, center), DEEPEST + 1)
        found += tl.where(here[None, :] <= bits[:, None], counted(value, k)[None, :], 0)
    return tl.sum(found, 1)


@triton.jit
def counted(x, k):
    """Return what each token adds to the sum that `keep_first` compares: 1 with k > 0, else its mass. int64."""
    if k > 0:
        each = tl.full(x.shape, 1, tl.int64)
    else:
        each = mass(x)
    return each


@triton.jit
def boundary(x, n, center, k, target):
    """Return the distance of the k-th nearest candidate from `center`, as bits.

    With k = 0 it is the first candidate whose mass, with the mass of all nearer ones, reaches `target`.
    """
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
    """Keep the k candidates nearest to `center`; of equally near ones, those with smaller ids.

    With k = 0, keep as many as it takes to reach the mass `target`. center 0: the largest. Return how many are kept,
    and the distance of the last one as bits. A few candidates are all compared with one another; among many, the last
    distance is searched for in its bits.
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
        # Of equally near ones, the earlier one has the smaller id.
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
            # Take equally near ones in the order of their ids until enough are kept.
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
    """Keep the candidates with x ≥ bound, a double. Return how many."""
    kept = 0
    for first in range(0, n, CHUNK):
        value = load(x, n, first)
        wanted = within(n, first) & (value.to(tl.float64) >= bound)
        kept = append(x, ids, kept, value, load_ids(ids, n, first), wanted)
    return kept


@triton.jit
def keep_above_edited(row, top, x, ids, n, bound):
    """Keep the candidates whose logit after the edits is at least `bound`, or is the largest of the candidates.

    Logits are distances from `top`. Return how many are kept.
    """
    largest = tl.full((), float("-inf"), tl.float32)
    for first in range(0, n, CHUNK):
        largest = tl.maximum(largest, tl.max(load_edited(row, top, ids, n, first), 0))
    least = tl.minimum(bound, largest.to(tl.float64))
    kept = 0
    for first in range(0, n, CHUNK):
        wanted = within(n, first) & (load_edited(row, top, ids, n, first).to(tl.float64) >= least)
        kept = append(x, ids, kept, load(x, n, first), load_ids(ids, n, first), wanted)
    return kept
