"""The refinements of one row's candidates, in the request's order. Counterpart of csrc/sample/refine.cpp.

While the candidates are incomplete, every token that is not collected lies below `floor` in the scale of x. If a stage
must see deeper, it returns the depth (in that scale), and the row is collected again.

(More than 300 lines: every refinement is a branch of one compiled function.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels import constants
from tailrace.kernels.gpu.candidates import (
    LOWEST,
    append,
    divide,
    entropy,
    keep_above,
    keep_above_edited,
    keep_first,
    load,
    load_ids,
    relative_to_largest,
    replace,
    total,
    total_squares,
    within,
)
from tailrace.kernels.gpu.noise import uniform_of
from tailrace.kernels.gpu.order import NONE_KEY, ordered, value_of
from tailrace.kernels.gpu.program import EXEMPT, KEY, NUM_EXEMPT, STAGE, STAGE_FIELDS, number
from tailrace.kernels.gpu.scan import CHUNK, highest
from tailrace.kernels.program import STAGE_NUMBERS, STAGES

TEMPERATURE = tl.constexpr(STAGE_NUMBERS["temperature"])
DYNAMIC_TEMPERATURE = tl.constexpr(STAGE_NUMBERS["dynamic_temperature"])
QUADRATIC = tl.constexpr(STAGE_NUMBERS["quadratic"])
MIN_P = tl.constexpr(STAGE_NUMBERS["min_p"])
TOP_K = tl.constexpr(STAGE_NUMBERS["top_k"])
TOP_P = tl.constexpr(STAGE_NUMBERS["top_p"])
TOP_A = tl.constexpr(STAGE_NUMBERS["top_a"])
TYPICAL = tl.constexpr(STAGE_NUMBERS["typical"])
EPSILON = tl.constexpr(STAGE_NUMBERS["epsilon"])
ETA = tl.constexpr(STAGE_NUMBERS["eta"])
TOP_N_SIGMA = tl.constexpr(STAGE_NUMBERS["top_n_sigma"])
XTC = tl.constexpr(STAGE_NUMBERS["xtc"])
P_LESS = tl.constexpr(STAGE_NUMBERS["p_less"])
HANDLED = (
    TEMPERATURE,
    DYNAMIC_TEMPERATURE,
    QUADRATIC,
    MIN_P,
    TOP_K,
    TOP_P,
    TOP_A,
    TYPICAL,
    EPSILON,
    ETA,
    TOP_N_SIGMA,
    XTC,
    P_LESS,
)
_missing = {kind for kind, info in STAGES.items() if info.on_gpu} ^ {list(STAGES)[kind.value] for kind in HANDLED}
if _missing:
    raise ImportError(
        f"kernels/program.py and the GPU's kernels differ about these stages: {', '.join(sorted(_missing))}"
    )
XTC_STREAM = tl.constexpr(constants.XTC_STREAM)
EVERYTHING = tl.constexpr(-1e300)  # a depth that only the complete row satisfies
SLACK = tl.constexpr(1.0 + 1e-6)  # rounding must not make the first try fail
TOLERANCE = tl.constexpr(constants.TOLERANCE)  # relative tolerance of comparisons with a bound
SIGMA_SLACK = tl.constexpr(constants.SIGMA_SLACK)


@triton.jit
def stage_at(record, s):
    """Return a stage's kind, its k, and the address of its a, b and c."""
    at = record + STAGE + s * STAGE_FIELDS
    return tl.load(at).to(tl.int32), tl.load(at + 1), at + 2


@triton.jit
def reached_at(share, whole):
    """Return the mass that counts as reaching this share of the whole."""
    return share * whole * (1.0 - TOLERANCE)


@triton.jit
def reached_by(keys, blocks, k):
    """Return a value that the maxima of at least k blocks reach, and of few more. So at least k tokens reach it.

    Return −inf if there are fewer blocks.
    """
    low, high = tl.full((), NONE_KEY, tl.int32), highest(keys, blocks)
    if blocks >= k:
        low = tl.maximum(least_of(keys, blocks), low)
        halve = 0
        while low < high:
            # Halve by value and by bits in turn. So neither a sign nor an outlier makes the search long.
            middle = ordered(value_of(low) * 0.5 + value_of(high) * 0.5)
            if (halve % 2 == 1) | (middle <= low) | (middle > high):
                middle = (high.to(tl.int64) - (high.to(tl.int64) - low) // 2).to(tl.int32)
            reach = tl.full((), 0, tl.int32)
            for first in range(0, blocks, CHUNK):
                at = first + tl.arange(0, CHUNK)
                key = tl.load(keys + at, mask=at < blocks, other=-(2**31))
                reach += tl.sum((key >= middle).to(tl.int32), 0)
            low, high = tl.where(reach >= k, middle, low), tl.where(reach >= k, high, middle - 1)
            high = tl.where((reach >= k) & (reach <= k + k // 4), low, high)  # near enough
            halve += 1
    return value_of(low)


@triton.jit
def least_of(keys, blocks):
    """Return the smallest of the blocks' largest keys."""
    found = tl.full((), 2**31 - 1, tl.int32)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        found = tl.minimum(found, tl.min(tl.load(keys + block, mask=block < blocks, other=2**31 - 1), 0))
    return found


@triton.jit
def p_less_depth(mass, squares, k, vocab):
    """Return how deep p-less keeps: ln of its threshold relative to the likeliest, from Σ e^x and Σ e^2x."""
    agree = squares / (mass * mass)
    many = tl.maximum(vocab, 2).to(tl.float64)
    least = tl.where(k == 0, agree, (many * agree - 1.0) / (many - 1.0))
    wanted = (least > 0.0) & ((k == 0) | (vocab > 1))
    return tl.where(wanted, tl.log(tl.where(wanted, least, 1.0) * mass), EVERYTHING)


@triton.jit
def first_depth(record, stages, blocks, keys, top, mass, squares, sigma, vocab):
    """Return the depth, relative to the maximum, down to which tokens are collected first."""
    depth, temperature = tl.full((), EVERYTHING, tl.float64), tl.full((), 1.0, tl.float64)
    settled = 0
    for s in range(stages):
        if settled == 0:
            kind, k, knobs = stage_at(record, s)
            a = number(knobs, 0)
            if kind == TEMPERATURE:
                temperature = temperature * a
            elif kind == MIN_P:
                depth, settled = tl.maximum(depth, temperature * (tl.log(a) - TOLERANCE) * SLACK), 1
            elif kind == TOP_N_SIGMA:
                depth, settled = tl.maximum(depth, -a * sigma * SIGMA_SLACK * SLACK), 1
            elif kind == TOP_K:
                depth, settled = tl.maximum(depth, reached_by(keys, blocks, k).to(tl.float64) - top), 1
            elif (kind == DYNAMIC_TEMPERATURE) | (kind == QUADRATIC) | (kind == XTC):
                settled = 1
            elif kind == P_LESS:
                if squares > 0.0:
                    depth = tl.maximum(
                        depth, temperature * tl.minimum(p_less_depth(mass, squares, k, vocab) - TOLERANCE, 0.0) * SLACK
                    )
            elif kind == EPSILON:
                depth = tl.maximum(depth, temperature * (tl.log(a) + tl.log(mass) - TOLERANCE) * SLACK)
            else:
                depth = tl.maximum(depth, -4.0 * temperature)
    return tl.minimum(depth, 0.0)


@triton.jit
def refine(record, stages, row, position, top, mass, row_entropy, squares, mass_temperature, sigma, floor, x, ids, n):
    """Apply all stages in order. Return how many candidates are left, and the depth to collect down to instead.

    The depth is relative to the maximum; it is 0 if every stage could decide. The numbers mass, row_entropy and squares
    (Σ e^2d) describe the whole row, d = (l − max) / mass_temperature. They are unknown if mass_temperature is 0.
    """
    needed = tl.full((), 0.0, tl.float64)
    temperature = tl.full((), 1.0, tl.float64)
    complete = floor <= EVERYTHING
    for s in range(stages):
        if needed == 0.0:
            kind, k, knobs = stage_at(record, s)
            a = number(knobs, 0)
            # Most stages end in one of two ways: keep the first k, or keep those above a bound. The code has each way
            # once.
            first, above = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
            center, target = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
            bound = tl.full((), LOWEST, tl.float64)
            if kind == TEMPERATURE:
                # Where all else underflows, an incomplete set is sure of the largest and its equals only.
                if (complete == 0) & (temperature * a < 1e-30) & (floor > -1e-20):
                    needed = needed - 1e-20
                else:
                    divide(x, n, a)
                    above = (a < 1.0).to(tl.int32)
                    floor = floor / a
                    temperature = temperature * a
            elif kind == TOP_K:
                if n < k:
                    needed = tl.where(complete, needed, EVERYTHING)
                else:
                    first += 1
            elif kind == TOP_N_SIGMA:
                lowest = -a * sigma * SIGMA_SLACK
                if (complete == 0) & (floor * temperature > lowest):
                    needed = lowest / temperature
                else:
                    n = keep_above_edited(row, top, x, ids, n, lowest)
                    complete = True
            elif (kind == DYNAMIC_TEMPERATURE) | (kind == QUADRATIC) | (kind == XTC):
                if complete == 0:
                    needed = needed + EVERYTHING
                elif kind == XTC:
                    n = exclude_top_choices(record, position, knobs, x, ids, n)
                else:
                    n = reshape(kind, knobs, x, ids, n)
            elif kind == MIN_P:
                bound = tl.minimum(tl.log(a) - TOLERANCE, 0.0)  # the likeliest stays
                above += 1
            else:  # top-p, top-a, typical, epsilon, eta, p-less: HANDLED has no other kind
                k = k * (kind == P_LESS).to(tl.int64)
                here = total(x, n)
                known = complete | (mass_temperature == temperature)
                whole = tl.where(complete, here, mass)
                if known == 0:
                    needed = needed + EVERYTHING
                elif kind == TOP_P:
                    target = reached_at(a, whole)
                    if (complete == 0) & (here < target):
                        # All tokens below (1 − top_p) / V weigh less than 1 − top_p together, so the tokens above
                        # suffice. First try half-way there.
                        sure = tl.log(0.5 * (1.0 - a) * whole / row[1])
                        halfway = tl.where((floor > -8.0) & (sure < -8.0), -8.0, sure)
                        needed = tl.where(floor <= sure, EVERYTHING, halfway)
                    else:
                        first += 1
                elif kind == TYPICAL:
                    h = row_entropy
                    if complete:
                        h, _ = entropy(x, n, here)
                    center, target = tl.log(whole) - h, reached_at(a, whole)
                    if (complete == 0) & (here < target):
                        needed = tl.where(floor > -50.0, 2.0 * floor - 1.0, EVERYTHING)
                    else:
                        first += 1
                else:
                    bound = threshold(kind, k, a, complete, whole, here, row_entropy, squares, row[1], x, n)
                    if (complete == 0) & (floor > bound):
                        needed = bound
                    else:
                        above += 1
            if first != 0:
                n, last = keep_first(x, ids, n, center, k, target)
                if kind == TYPICAL:
                    # What is not collected lies further down than any candidate.
                    if (complete == 0) & (last.to(tl.float32, bitcast=True) >= center - floor):
                        needed = tl.where(floor > -50.0, 2.0 * floor - 1.0, EVERYTHING)
                    relative_to_largest(x, n)
                complete = True
            if above != 0:
                n = keep_above(x, ids, n, bound)
                complete = complete | (kind != TEMPERATURE)
    return n, tl.where(needed > EVERYTHING, needed * temperature * SLACK, needed)


@triton.jit
def threshold(kind, k, a, complete, whole, here, row_entropy, squares, vocab, x, n):
    """Return the x down to which top-a, epsilon, eta and p-less keep. It is at most 0: the likeliest stays."""
    bound = tl.log(a)
    if kind == TOP_A:  # p ≥ a · p₁², and p₁ = 1 / mass
        bound = bound - tl.log(whole)
    elif kind == EPSILON:
        bound = bound + tl.log(whole)
    elif kind == ETA:  # p ≥ min(a, √a · e^−H)
        h = row_entropy
        if complete:
            h, _ = entropy(x, n, here)
        bound = tl.minimum(bound, 0.5 * bound - h) + tl.log(whole)
    else:
        if complete:
            squares = total_squares(x, n)
        bound = p_less_depth(whole, squares, k, vocab)
    return tl.minimum(bound - TOLERANCE, 0.0)


@triton.jit
def reshape(kind, knobs, x, ids, n):
    """Apply dynamic temperature T = low + (high − low) · (H / ln n)^c, or x' = −d² (k + q d) with d = −x. Return how
    many are left."""
    a, b, c = number(knobs, 0), number(knobs, 1), number(knobs, 2)
    if kind == QUADRATIC:
        k, q = a * (3.0 - b) / 2.0, a * (b - 1.0) / 2.0
        for first in range(0, n, CHUNK):
            d = -load(x, n, first).to(tl.float64)
            changed = tl.maximum(-d * d * (k + q * d), LOWEST * 2.0)
            replace(x, n, first, tl.where(changed < LOWEST, float("-inf"), changed).to(tl.float32))
        n = keep_above(x, ids, n, LOWEST)
    elif n > 1:
        h, _ = entropy(x, n, total(x, n))
        low, high = tl.maximum(0.0, a - b), a + b
        share = tl.maximum(h, 0.0) / tl.log(n.to(tl.float64))
        t = low + (high - low) * tl.where(share > 0.0, tl.exp(c * tl.log(tl.maximum(share, 1e-300))), 0.0)
        if t <= 0.0:
            n = keep_above(x, ids, n, 0.0)
        else:
            divide(x, n, t)
            n = keep_above(x, ids, n, LOWEST)
    return n


@triton.jit
def exclude_top_choices(record, position, knobs, x, ids, n):
    """With probability b, remove all tokens with p ≥ a but the least likely of them. Return how many are left.

    Exempt tokens are never removed and do not count among the tokens with p ≥ a.
    """
    a, b = number(knobs, 0), number(knobs, 1)
    if uniform_of(tl.load(record + KEY), position, XTC_STREAM) < b:
        bound = tl.log(a * total(x, n)) - TOLERANCE
        choices, least = 0, tl.full((), float("inf"), tl.float32)
        for first in range(0, n, CHUNK):
            value, chosen = choices_of(record, x, ids, n, first, bound)
            choices += tl.sum(chosen.to(tl.int32), 0)
            least = tl.minimum(least, tl.min(tl.where(chosen, value, float("inf")), 0))
        if choices >= 2:
            spared = tl.full((), -1, tl.int32)  # of equal ones, the largest id
            for first in range(0, n, CHUNK):
                value, chosen = choices_of(record, x, ids, n, first, bound)
                spared = tl.maximum(spared, tl.max(tl.where(chosen & (value == least), load_ids(ids, n, first), -1), 0))
            kept = 0
            for first in range(0, n, CHUNK):
                value, chosen = choices_of(record, x, ids, n, first, bound)
                token, inside = load_ids(ids, n, first), within(n, first)
                kept = append(x, ids, kept, value, token, inside & ((chosen == 0) | (token == spared)))
            n = kept
            relative_to_largest(x, n)
    return n


@triton.jit
def choices_of(record, x, ids, n, first, bound):
    """Return a chunk's x, and which of its tokens XTC may remove."""
    value, token = load(x, n, first), load_ids(ids, n, first)
    chosen = within(n, first) & (value.to(tl.float64) >= bound)
    for e in range(tl.load(record + NUM_EXEMPT)):
        chosen = chosen & (token != tl.load(record + EXEMPT + e))
    return value, chosen
