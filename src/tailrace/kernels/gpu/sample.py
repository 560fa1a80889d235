"""One row: from the results of the scan to the surviving tokens and the token that plain sampling draws."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.candidates import LOWEST, collect
from tailrace.kernels.gpu.columns import DRAFT, FORCED, POSITION, PROPOSED, RULE, SLOT, column
from tailrace.kernels.gpu.draw import DRAW, first_of, winner, winner_of_all
from tailrace.kernels.gpu.edits import row_at
from tailrace.kernels.gpu.order import STATUSES, id_of, status_of, value_of
from tailrace.kernels.gpu.program import (
    ENTROPY,
    FLAGS,
    GREEDY,
    KEY,
    LOGPROBS,
    MASS,
    MASS_TEMPERATURE,
    MOMENTS,
    NUCLEUS,
    NUM_STAGES,
    PLAIN,
    PROCESSED,
    SIGMA,
    SQUARES,
    SURVIVORS,
    WANTS,
    number,
)
from tailrace.kernels.gpu.refine import EVERYTHING, TEMPERATURE, first_depth, reached_at, refine, stage_at
from tailrace.kernels.gpu.scan import OF_MASS, OF_SIGMA, highest, mass_of, sigma_of, squares_of
from tailrace.kernels.rows import RULES

EXACT = tl.constexpr(RULES.index("exact"))
BLOCKWISE = tl.constexpr(RULES.index("block"))
TYPICAL_RULE = tl.constexpr(RULES.index("typical"))


@triton.jit
def sample_rows(step, tables, work, blocks):
    """Write to `work`, by row: status; drawn, 1 if the status is OK; token, −1 if it is not.

    If survivors are needed, write them to x and ids, and their number to count.

    Instruction fetches dominate a row's time, since no cache holds the code between steps. So code that many rows
    need has one call site.
    """
    row = tl.program_id(0).to(tl.int64)
    plane = work.plane
    here, record, position = (
        row_at(step, tables, row),
        tables.records + column(step, SLOT, row) * tables.fields,
        column(step, POSITION, row),
    )
    draft, rule, forced = column(step, DRAFT, row), column(step, RULE, row), column(step, FORCED, row)
    flags, seed, stages = tl.load(record + FLAGS), tl.load(record + KEY), tl.load(record + NUM_STAGES)
    reported = (tl.load(record + LOGPROBS) >= 0) | ((flags & ENTROPY) != 0)
    keys, sums = work.keys + row * blocks, work.sums + row * blocks
    x, ids, found = work.x + row * step.vocab, work.ids + row * step.vocab, work.found + row * blocks
    largest = highest(keys, blocks)
    state = status_of(largest)
    tl.store(work.status + row, state.to(tl.int64))
    tl.store(work.drawn + row, (state == STATUSES[0]).to(tl.int64))
    token, n = tl.full((), -1, tl.int64), tl.full((), 0, tl.int32)
    if state == STATUSES[0]:
        top = value_of(largest)
        greedy = (flags & GREEDY) != 0
        # A draft may be accepted, or a token may be drawn from the remainder. Both need all survivors.
        proposed = rule == PROPOSED
        settled = (greedy == 0) & (
            (rule == BLOCKWISE) | ((rule != EXACT) & (draft >= 0)) | (proposed & ((flags & PLAIN) == 0))
        )
        told = ((flags & SURVIVORS) != 0) & (greedy == 0) & (forced < 0)
        listed = settled | ((told | (reported & ((flags & PROCESSED) != 0))) & (rule != PROPOSED))
        if greedy:
            stages = stages * 0
        # Without a list: the likeliest token, the winner of the whole row, or the draft of propose.py.
        if listed | ((flags & (GREEDY | PLAIN)) == 0):
            nucleus = (listed == 0) & ((flags & NUCLEUS) != 0)
            n = candidates(record, stages, here, position, keys, sums, plane, blocks, top, nucleus, x, ids, found)
        if greedy:
            token = first_of(here, blocks, keys, largest).to(tl.int64)
        elif n > 0:
            if (proposed == 0) & ((settled == 0) | (rule == TYPICAL_RULE) | ((flags & PLAIN) == 0)):
                token = id_of(winner(x, ids, n, seed, position, DRAW, -1))
        elif (forced < 0) & (proposed == 0):
            likeliest = first_of(here, blocks, keys, largest)
            temperature, target = tl.full((), 1.0, tl.float64), tl.full((), float("inf"), tl.float64)
            for s in range(stages):
                kind, _k, knobs = stage_at(record, s)
                if kind == TEMPERATURE:
                    temperature = temperature * number(knobs, 0)
                else:
                    whole, _one, _two = mass_of(
                        keys, sums + OF_MASS * plane, plane, blocks, top, 1.0 / temperature, False
                    )
                    target = reached_at(number(knobs, 0), whole)
            best = winner_of_all(
                here, blocks, keys, top, temperature, target, x, ids, found, likeliest, seed, position, DRAW
            )
            token, n = id_of(best), n * 0
        token = tl.where(forced >= 0, forced, token)
    tl.store(work.token + row, token)
    tl.store(work.count + row, n)


@triton.jit
def candidates(record, stages, here, position, keys, sums, plane, blocks, top, nucleus, x, ids, found):
    """Collect candidates as deep as the refinements must look, and refine them. Return how many are left.

    nucleus: the likeliest tokens alone may fail to decide the nucleus; then return 0.
    """
    wants, mass_temperature = tl.load(record + WANTS), number(record, MASS_TEMPERATURE)
    whole, h = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    sigma, squares = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    if (wants & MASS) != 0:
        moments = (wants & MOMENTS) != 0
        whole, first, _ = mass_of(keys, sums + OF_MASS * plane, plane, blocks, top, 1.0 / mass_temperature, moments)
        if moments:
            h = tl.log(whole) - first / whole
        if (wants & SQUARES) != 0:
            squares = squares_of(keys, sums + OF_MASS * plane, plane, blocks, top, 1.0 / mass_temperature)
    if (wants & SIGMA) != 0:
        sigma = sigma_of(here, keys, sums + OF_SIGMA * plane, plane, blocks, top)
    depth = first_depth(record, stages, blocks, keys, top, whole, squares, sigma, here[1])
    n = tl.full((), 0, tl.int32)
    while depth < 1.0:
        floor = tl.maximum(top + depth, LOWEST).to(tl.float32)
        n = collect(here, keys, blocks, floor, top, x, ids, found)
        n, deeper = refine(
            record, stages, here, position, top, whole, h, squares, mass_temperature, sigma, depth, x, ids, n
        )
        # Rounding must not make a stage ask for the same depth again.
        depth = tl.where(deeper == 0.0, 2.0, tl.where(deeper < depth, deeper, EVERYTHING))
        if nucleus & (depth < 1.0):
            n, depth = n * 0, depth * 0.0 + 2.0
    return n
