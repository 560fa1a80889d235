"""Drafts, and the distributions q that they are drawn from. Counterpart of Target::propose in csrc/sample/target.cpp.

A row's ids are split into PARTS. First each part writes e^x and its sum if the request has only temperatures, else
zeros. Then each part divides by the whole sum, or writes the candidates that sample_rows has listed. A uniform number
of its own selects the draft by its place in the mass. Masses are sums of integers (candidates.py), so exactly one part
finds the draft.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.candidates import UNIT, load, load_ids, mass, total, weight, within
from tailrace.kernels.gpu.columns import FORCED, NOISE_POSITION, NOISE_STREAM, SLOT, column, proposal_of
from tailrace.kernels.gpu.draw import relative
from tailrace.kernels.gpu.edits import logit_at, row_at
from tailrace.kernels.gpu.noise import uniform_of
from tailrace.kernels.gpu.order import STATUSES, value_of
from tailrace.kernels.gpu.program import FLAGS, GREEDY, KEY, NUM_STAGES, PLAIN, number
from tailrace.kernels.gpu.refine import stage_at
from tailrace.kernels.gpu.scan import CHUNK, highest

PARTS = tl.constexpr(32)  # the programs that share a row


@triton.jit
def fill_proposals(step, tables, work, masses, blocks):
    """Write q, not yet normalised, and masses int64 [R, PARTS]."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(work.status + row) == STATUSES[0]:
        q, found = proposal_of(step, row), tl.zeros((CHUNK,), tl.int64)
        first, end = span(step.vocab, part)
        if is_whole(step, tables, row):
            here, top = row_at(step, tables, row), value_of(highest(work.keys + row * blocks, blocks))
            temperature = temperature_of(step, tables, row)
            for at in range(first, end, CHUNK):
                id, x = x_of(here, top, temperature, at, end)
                found += mass(x)
                tl.store(q + id, weight(x), mask=id < end)
        else:
            for at in range(first, end, CHUNK):
                id = at + tl.arange(0, CHUNK)
                tl.store(q + id, tl.zeros((CHUNK,), tl.float32), mask=id < end)
        tl.store(masses + row * PARTS + part, tl.sum(found, 0))


@triton.jit
def propose_rows(step, tables, work, masses, blocks):
    """Write q, and the draft to work.token. If no token is left to draw, set work.status."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(work.status + row) == STATUSES[0]:
        record = tables.records + column(step, SLOT, row) * tables.fields
        q = proposal_of(step, row)
        u = uniform_of(tl.load(record + KEY), column(step, NOISE_POSITION, row), column(step, NOISE_STREAM, row))
        first, end = span(step.vocab, part)
        if ((tl.load(record + FLAGS) & GREEDY) != 0) | (column(step, FORCED, row) >= 0):  # there is only one choice
            only = tl.load(work.token + row)
            if (only >= first) & (only < end):
                tl.store(q + only, 1.0)
        elif is_whole(step, tables, row):
            each = tl.arange(0, PARTS)
            parts = tl.load(masses + row * PARTS + each)
            whole, mine = tl.sum(parts, 0), tl.sum(tl.where(each == part, parts, 0), 0)
            before = tl.sum(tl.where(each < part, parts, 0), 0)
            for at in range(first, end, CHUNK):
                id = at + tl.arange(0, CHUNK)
                w = tl.load(q + id, mask=id < end, other=0.0)
                tl.store(q + id, share(w, whole), mask=id < end)
            target = place_in(u, whole)
            if (target >= before) & (target < before + mine):
                here, top = row_at(step, tables, row), value_of(highest(work.keys + row * blocks, blocks))
                temperature = temperature_of(step, tables, row)
                at = first
                while at < end:
                    id, x = x_of(here, top, temperature, at, end)
                    reached = before + tl.cumsum(mass(x), 0)
                    before += tl.sum(mass(x), 0)
                    if before > target:
                        tl.store(work.token + row, tl.min(tl.where(reached > target, id, end), 0).to(tl.int64))
                        at = end
                    at += CHUNK
        else:
            x, ids, n = work.x + row * step.vocab, work.ids + row * step.vocab, tl.load(work.count + row)
            whole = (total(x, n) * UNIT).to(tl.int64)
            for at in range(first_from(ids, n, first), first_from(ids, n, end), CHUNK):
                id = load_ids(ids, n, at)
                tl.store(q + id, share(weight(load(x, n, at)), whole), mask=within(n, at) & (id < end))
            if part == 0:
                draw_listed(work, row, x, ids, n, place_in(u, whole), whole)


@triton.jit
def draw_listed(work, row, x, ids, n, target, whole):
    """Write the candidate in whose mass `target` lies; without any mass, the status EMPTY."""
    if whole > 0:
        before, at = tl.full((), 0, tl.int64), tl.full((), 0, tl.int32)
        while at < n:
            each = mass(load(x, n, at))
            reached = before + tl.cumsum(each, 0)
            before += tl.sum(each, 0)
            if before > target:
                behind = (reached > target) & within(n, at)
                chosen = tl.min(tl.where(behind, load_ids(ids, n, at), 2**31 - 1), 0)
                tl.store(work.token + row, chosen.to(tl.int64))
                at = n
            at += CHUNK
    else:
        tl.store(work.token + row, -1)
        tl.store(work.drawn + row, 0)
        tl.store(work.status + row, STATUSES[1])


@triton.jit
def span(vocab, part):
    """Return the ids of a part: the first one and the end."""
    each = tl.cdiv(tl.cdiv(vocab, PARTS), CHUNK) * CHUNK
    return tl.minimum(part * each, vocab), tl.minimum((part + 1) * each, vocab)


@triton.jit
def is_whole(step, tables, row):
    """Return whether no stage truncates the row and it has a choice. Its candidates are then not listed."""
    flags = tl.load(tables.records + column(step, SLOT, row) * tables.fields + FLAGS)
    return ((flags & PLAIN) != 0) & ((flags & GREEDY) == 0) & (column(step, FORCED, row) < 0)


@triton.jit
def temperature_of(step, tables, row):
    """Return the product of the row's temperatures, which are its only stages."""
    record = tables.records + column(step, SLOT, row) * tables.fields
    found = tl.full((), 1.0, tl.float64)
    for s in range(tl.load(record + NUM_STAGES)):
        _kind, _k, knobs = stage_at(record, s)
        found = found * number(knobs, 0)
    return found


@triton.jit
def x_of(here, top, temperature, at, end):
    """Return a chunk's ids, and x = (l − top) / temperature; −inf beyond the end."""
    id = at + tl.arange(0, CHUNK)
    value = logit_at(here, id, id < end)
    return id, tl.where(value > float("-inf"), relative(value, top, temperature), float("-inf"))


@triton.jit
def share(w, whole):
    """Return the share of the whole mass, float32."""
    return (w.to(tl.float64) * UNIT / tl.maximum(whole, 1).to(tl.float64)).to(tl.float32)


@triton.jit
def place_in(u, whole):
    """Return the unit of mass at the share u of the whole."""
    return tl.minimum((u * whole.to(tl.float64)).to(tl.int64), whole - 1)


@triton.jit
def first_from(ids, n, id):
    """Return how many of the ascending ids are smaller than `id`."""
    low, high = tl.full((), 0, tl.int32), n
    while low < high:
        middle = (low + high) // 2
        smaller = tl.load(ids + middle) < id
        low = tl.where(smaller, middle + 1, low)
        high = tl.where(smaller, high, middle)
    return low
