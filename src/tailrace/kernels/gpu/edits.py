"""Edits of single entries, applied when logits are read. Counterpart of csrc/sample/row.h.

A slot's edits are tables over the vocabulary. A bitmap marks the touched ids, and only their entries are read. `amend`
changes the tables id by id: its cost is the number of changed ids, not the length of the history.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.columns import BEFORE, DRAFT, MASK, SLOT, SOURCE, column
from tailrace.kernels.gpu.order import INF_KEY, ordered, power_of
from tailrace.kernels.gpu.program import (
    ALLOWED,
    COUNTS,
    EDITED,
    FLAGS,
    FREQUENCY,
    PENALISED,
    PRESENCE,
    REPEATS,
    REPETITION,
    SHIFTED,
    TOUCHED,
    number,
)

# The four int64 words of an amendment: slot · 2³² + id; bit 0 allowed, bit 1 touched; repeated · 2³² + counted; floats.
# The floats are bits: (number added after the penalties) · 2³² + (number added before them).
AMENDMENT = tl.constexpr(4)
BLOCK = 128


@triton.jit
def row_at(step, tables, row):
    """Return a row as the functions here and in candidates.py take it: the address of its logits, V, its edits."""
    owner = column(step, SLOT, row)
    record = tables.records + owner * tables.fields
    flags = tl.load(record + FLAGS)
    vocab, words = step.vocab, tl.cdiv(step.vocab, 32)
    place = column(step, MASK, row)
    before = column(step, BEFORE, row)  # number of drafts before this row
    edits = (
        flags,
        tables.allowed + owner * words,
        place >= 0,
        step.masks + tl.maximum(place, 0) * words,
        tables.touched + owner * words,
        tables.tally + owner * vocab,
        tables.shift + owner * vocab * 2,
        number(record, REPETITION).to(tl.float32),
        number(record, FREQUENCY).to(tl.float32),
        number(record, PRESENCE).to(tl.float32),
        step.numbers + DRAFT * step.padded + row - before,
        before,
        tl.load(record + REPEATS),
        tl.load(record + COUNTS),
    )
    return step.logits + column(step, SOURCE, row) * step.stride, vocab, edits


@triton.jit
def raw_at(row, ids, inside):
    """Return the model's logits, float32; −inf where not inside."""
    return tl.load(row[0] + ids, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def logit_at(row, ids, inside):
    """Return the logits after the edits."""
    return edited(row[2], raw_at(row, ids, inside), ids, inside)


@triton.jit
def is_edited(row):
    edits = row[2]
    return ((edits[0] & EDITED) != 0) | edits[2]


@triton.jit
def edited(edits, x, ids, inside):
    """Apply first the bans, then the numbers added before the penalties, the penalties, and the numbers added after
    them.

    This is the order of method_order.py.
    """
    flags, allowed, is_masked, mask, touched = edits[0], edits[1], edits[2], edits[3], edits[4]
    word, bit = ids // 32, ids % 32
    if (flags & ALLOWED) != 0:
        open = (tl.load(allowed + word, mask=inside, other=0) >> bit) & 1
        x = tl.where(open == 1, x, float("-inf"))
    if is_masked:
        open = (tl.load(mask + word, mask=inside, other=0) >> bit) & 1
        x = tl.where(open == 1, x, float("-inf"))
    if (flags & TOUCHED) != 0:
        hit = ((tl.load(touched + word, mask=inside, other=0) >> bit) & 1) == 1
        x = moved(edits, x, ids, hit)
    return x


@triton.jit
def moved(edits, x, ids, hit):
    """Apply additions and penalties. hit: which entries are touched; drafts alone change the others."""
    flags, tally, shift = edits[0], edits[5], edits[6]
    repetition, frequency, presence = edits[7], edits[8], edits[9]
    drafts, before, repeats, counts = edits[10], edits[11], edits[12], edits[13]
    if (flags & SHIFTED) != 0:
        x += tl.load(shift + 2 * ids, mask=hit, other=0.0)
    if (flags & PENALISED) != 0:
        both = tl.load(tally + ids, mask=hit, other=0)
        repeated, counted = both >> 32, both & 0xFFFFFFFF
        for d in range(before):
            same = (ids == tl.load(drafts + d)).to(tl.int64)
            repeated += same * repeats
            counted += same * counts
        scaled = tl.where(x > 0.0, tl.div_rn(x, repetition), x * repetition)
        x = tl.where(repeated > 0, scaled, x)
        x = tl.where(counted > 0, x - frequency * counted.to(tl.float32) - presence, x)
    if (flags & SHIFTED) != 0:
        x += tl.load(shift + 2 * ids + 1, mask=hit, other=0.0)
    return x


@triton.jit
def edited_blocks(row, block, raw, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Return the values of whole blocks after the edits. raw: float32 [TILE, BLOCK], from raw_at.

    Work is done by groups of eight ids, a byte of each bitmap. Banned entries of a group are cleared together. Other
    touched entries are changed one of each group at a time. So an entry without an edit costs next to nothing.
    """
    edits = row[2]
    flags, allowed, is_masked, mask, touched = edits[0], edits[1], edits[2], edits[3], edits[4]
    group = block[:, None] * (BLOCK // 8) + tl.arange(0, BLOCK // 8)[None, :]
    inside = group * 8 < row[1]
    word, shift = group // 4, (group % 4) * 8
    place = tl.arange(0, 8)[None, None, :]
    x = tl.reshape(raw, (TILE, BLOCK // 8, 8))
    if ((flags & ALLOWED) != 0) | is_masked:
        open = tl.full((TILE, BLOCK // 8), 255, tl.int32)
        if (flags & ALLOWED) != 0:
            open = open & (tl.load(allowed + word, mask=inside, other=0) >> shift)
        if is_masked:
            open = open & (tl.load(mask + word, mask=inside, other=0) >> shift)
        x = tl.where(((open[:, :, None] >> place) & 1) == 1, x, float("-inf"))
    if (flags & TOUCHED) != 0:
        hit = (tl.load(touched + word, mask=inside, other=0) >> shift) & 255
        left = hit
        if (flags & PENALISED) != 0:
            for d in range(edits[11]):
                draft = tl.load(edits[10] + d)
                left = left | tl.where(group == draft // 8, 1 << (draft % 8).to(tl.int32), 0)
        rounds = tl.max(tl.max(ones_of(left), 1), 0)
        for _ in range(rounds):
            lowest = left & -left
            at = power_of(lowest)
            here = (place == at[:, :, None]) & (left != 0)[:, :, None]
            value = tl.max(tl.where(here, x, float("-inf")), 2)
            value = moved(edits, value, group * 8 + at, ((hit >> at) & 1) == 1)
            x = tl.where(here, value[:, :, None], x)
            left = left & (left - 1)
    return tl.reshape(x, (TILE, BLOCK))


@triton.jit
def ones_of(byte):
    """Return the number of set bits of a byte."""
    byte = (byte & 0x55) + ((byte >> 1) & 0x55)
    byte = (byte & 0x33) + ((byte >> 2) & 0x33)
    return (byte & 0x0F) + (byte >> 4)


@triton.jit
def keys_at(row, ids, inside, raw):
    """Return ordered keys and values after the edits. An entry of NaN or +inf keeps its key. raw: from raw_at."""
    x, key = raw, ordered(raw)
    if is_edited(row):
        x = edited(row[2], raw, ids, inside)
        key = tl.where(key >= INF_KEY, key, ordered(x))
    return key, x


@triton.jit(do_not_specialize=["n", "tallies", "shifts"])
def amend(tables, amendments, n, vocab, tallies, shifts, BLOCK: tl.constexpr):
    """Write entries of the slots' tables. No two amendments may name the same entry.

    tallies, shifts: 1 if the table is allocated.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    at = amendments + i * AMENDMENT
    name = tl.load(at, mask=inside, other=0)
    state = tl.load(at + 1, mask=inside, other=0)
    owner, id = name >> 32, name & 0xFFFFFFFF
    entry, word = owner * vocab + id, owner * tl.cdiv(vocab, 32) + id // 32
    bit = (1 << (id % 32)).to(tl.int32)
    allowed, touched = (state & 1) == 1, (state & 2) == 2
    tl.atomic_or(tables.allowed + word, bit, mask=inside & allowed)
    tl.atomic_and(tables.allowed + word, ~bit, mask=inside & (allowed == 0))
    tl.atomic_or(tables.touched + word, bit, mask=inside & touched)
    if tallies == 1:
        tl.store(tables.tally + entry, tl.load(at + 2, mask=inside, other=0), mask=inside & touched)
    if shifts == 1:
        both = tl.load(at + 3, mask=inside, other=0)
        before, later = both.to(tl.int32), (both >> 32).to(tl.int32)
        tl.store(tables.shift + 2 * entry, before.to(tl.float32, bitcast=True), mask=inside & touched)
        tl.store(tables.shift + 2 * entry + 1, later.to(tl.float32, bitcast=True), mask=inside & touched)
