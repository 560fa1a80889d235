"""The refinements over one row's survivors, in the request's order; counterpart of csrc/refine.cpp.

While the survivors are incomplete, every uncollected token lies below `floor` in the scale of x. A stage that must see deeper says how deep
(in that scale) and the row is collected anew.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.order import INF_KEY, NONE_KEY, value_of
from tailrace.kernels.gpu.survivors import CHUNK, divide, keep_above, keep_above_raw, keep_first, total
from tailrace.kernels.program import STAGES, StageKind

HAVE: tuple[StageKind, ...] = ("temperature", "min_p", "top_k", "top_p", "top_a", "epsilon", "top_n_sigma")
TEMPERATURE = tl.constexpr(STAGES.index("temperature"))
MIN_P = tl.constexpr(STAGES.index("min_p"))
TOP_K = tl.constexpr(STAGES.index("top_k"))
TOP_P = tl.constexpr(STAGES.index("top_p"))
TOP_A = tl.constexpr(STAGES.index("top_a"))
EPSILON = tl.constexpr(STAGES.index("epsilon"))
TOP_N_SIGMA = tl.constexpr(STAGES.index("top_n_sigma"))
EVERYTHING = tl.constexpr(-1e300)  # a depth that only the complete row satisfies
SLACK = tl.constexpr(1.0 + 1e-6)  # rounding must not make the first try fail


@triton.jit
def reached_by(keys, blocks, k):
    """A value that the maxima of at least k blocks reach, so at least k tokens: the largest such. −inf where there are fewer blocks."""
    low, high = tl.full((), NONE_KEY, tl.int64), tl.full((), INF_KEY, tl.int64)
    while low < high:
        middle = high - (high - low) // 2
        count = 0
        for first in range(0, blocks, CHUNK):
            at = first + tl.arange(0, CHUNK)
            count += tl.sum((tl.load(keys + at, mask=at < blocks, other=-(2**31)) >= middle).to(tl.int32), 0)
        low = tl.where(count >= k, middle, low)
        high = tl.where(count >= k, high, middle - 1)
    return value_of(low.to(tl.int32))


@triton.jit
def first_depth(kinds, ks, knobs, stages, blocks, keys, top, mass, sigma):
    """Down to which logit, relative to the maximum, it is worth collecting first."""
    depth, temperature = tl.full((), EVERYTHING, tl.float64), tl.full((), 1.0, tl.float64)
    settled = 0
    for s in range(stages):
        if settled == 0:
            kind, a = tl.load(kinds + s), tl.load(knobs + s)
            if kind == TEMPERATURE:
                temperature = temperature * a
            elif kind == MIN_P:
                depth, settled = tl.maximum(depth, temperature * tl.log(a) * SLACK), 1
            elif kind == TOP_N_SIGMA:
                depth, settled = tl.maximum(depth, -a * sigma * SLACK), 1
            elif kind == TOP_K:
                reached = reached_by(keys, blocks, tl.load(ks + s))
                depth, settled = tl.maximum(depth, reached.to(tl.float64) - top), 1
            elif kind == EPSILON:
                depth = tl.maximum(depth, temperature * tl.log(a * mass) * SLACK)
            else:
                depth = tl.maximum(depth, -4.0 * temperature)
    return tl.minimum(depth, 0.0)


@triton.jit
def refine(kinds, ks, knobs, stages, at, vocab, top, mass, mass_temperature, sigma, floor, x, ids, n):
    """All stages in order → how many are left, and where a stage could not decide the depth (relative to the maximum) to collect down to
    instead; 0 where all could. mass: Σ e^((l − max) / mass_temperature) over the row; mass_temperature 0: not known."""
    needed = tl.full((), 0.0, tl.float64)
    temperature = tl.full((), 1.0, tl.float64)
    complete = floor <= EVERYTHING
    for s in range(stages):
        if needed == 0.0:
            kind, k, a = tl.load(kinds + s), tl.load(ks + s), tl.load(knobs + s)
            if kind == TEMPERATURE:
                divide(x, n, a)
                floor = floor / a
                temperature = temperature * a
            elif kind == TOP_K:
                if n < k:
                    needed = tl.where(complete, needed, EVERYTHING)
                else:
                    n = keep_first(x, ids, n, k, needed)
                    complete = True
            elif kind == TOP_N_SIGMA:
                bound = -a * sigma
                if (complete == 0) & (floor * temperature > bound):
                    needed = bound / temperature
                else:
                    n = keep_above_raw(at, top, x, ids, n, bound)
                    complete = True
            else:
                here = total(x, n)
                known = complete | (mass_temperature == temperature)
                all_mass = tl.where(complete, here, mass)
                bound = tl.log(a)
                if kind == TOP_A:  # p ≥ a · p₁², and p₁ = 1 / mass
                    bound = bound - tl.log(all_mass)
                elif kind == EPSILON:
                    bound = bound + tl.log(all_mass)
                bound = tl.minimum(bound, 0.0)  # the likeliest stays
                if (kind != MIN_P) & (known == 0):
                    needed = needed + EVERYTHING
                elif kind == TOP_P:
                    if (complete == 0) & (here < a * all_mass):
                        # all tokens below (1 − top_p) / V weigh less than 1 − top_p together: enough is above; first half-way there
                        sure = tl.log(0.5 * (1.0 - a) * all_mass / vocab)
                        halfway = tl.where((floor > -8.0) & (sure < -8.0), -8.0, sure)
                        needed = tl.where(floor <= sure, EVERYTHING, halfway)
                    else:
                        n = keep_first(x, ids, n, 0, a * all_mass)
                        complete = True
                elif (complete == 0) & (floor > bound):
                    needed = bound
                else:
                    n = keep_above(x, ids, n, bound)
                    complete = True
    return n, tl.where(needed > EVERYTHING, needed * temperature * SLACK, needed)
