"""A drawn token's log-probability and rank, and the likeliest other tokens. Counterpart of csrc/sample/logprobs.cpp.

For the model's own distribution, only blocks are read whose maximum shows that they hold something as likely. For the
distribution drawn from, the candidates that sample_rows has left in memory are read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.candidates import (
    GROUP,
    append,
    entropy,
    keep_first,
    load,
    load_ids,
    reaching,
    tokens_of,
    total,
    within,
)
from tailrace.kernels.gpu.columns import SLOT, START, column
from tailrace.kernels.gpu.edits import raw_at, row_at
from tailrace.kernels.gpu.order import NOBODY, NONE_KEY, id_of, key_of, ordered, packed, value_of
from tailrace.kernels.gpu.program import ENTROPY, FLAGS, LOGPROBS, PROCESSED
from tailrace.kernels.gpu.refine import reached_by
from tailrace.kernels.gpu.scan import CHUNK, OF_RAW, highest, mass_of

MOST = tl.constexpr(2**63 - 1)


@triton.jit(do_not_specialize=["width", "top"])
def logprobs_of_rows(step, tables, work, out, blocks, width, top):
    """Write the reports of the programs that ask for some.

    out.numbers: float64 [N, width, 3 + top], logprob, entropy and varentropy in nats, the top logprobs. out.ranks:
    int64 [N, width, 1 + top], rank, the top ids.
    """
    i, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = column(step, START, i)
    row, record = first + j, tables.records + column(step, SLOT, first) * tables.fields
    count, flags = tl.load(record + LOGPROBS).to(tl.int32), tl.load(record + FLAGS)
    asked = (count >= 0) | ((flags & ENTROPY) != 0)
    if asked & (j < tl.load(out.num_tokens + i)):
        token = tl.load(out.token_ids + i * width + j)
        numbers, ranks = out.numbers + (i * width + j) * (3 + top), out.ranks + (i * width + j) * (1 + top)
        x, ids, n = work.x + row * step.vocab, work.ids + row * step.vocab, tl.load(work.count + row)
        if (flags & PROCESSED) != 0:
            whole = total(x, n)
            h, square = entropy(x, n, whole)
            rank, mine = rank_among(x, ids, n, token)
        else:
            keys = work.raw_keys + row * blocks
            plane = work.plane
            here, found = row_at(step, tables, row), work.found + row * blocks
            largest = value_of(highest(keys, blocks))
            sums = work.sums + OF_RAW * plane + row * blocks
            whole, one, second = mass_of(keys, sums, plane, blocks, largest, 1.0, (flags & ENTROPY) != 0)
            h, square = tl.log(whole) - one / whole, second / whole
            rank, mine = rank_in_row(here, keys, blocks, found, token, largest)
            n = tl.full((), 0, tl.int32)
            if count > 0:
                n = likeliest(here, keys, blocks, found, largest, count, x, ids)
        log_mass = tl.log(whole)
        tl.store(numbers + 1, h)
        tl.store(numbers + 2, square - (log_mass - h) * (log_mass - h))
        if count >= 0:
            tl.store(numbers, mine.to(tl.float64) - log_mass)
            tl.store(ranks, rank)
            write_top(x, ids, n, step.vocab, count, log_mass, numbers + 3, ranks + 1)


@triton.jit
def rank_among(x, ids, n, token):
    """Return the token's rank among the candidates and its x; −inf for a token that is no candidate."""
    mine = tl.full((), float("-inf"), tl.float32)
    for first in range(0, n, CHUNK):
        same = (load_ids(ids, n, first) == token) & within(n, first)
        mine = tl.maximum(mine, tl.max(tl.where(same, load(x, n, first), float("-inf")), 0))
    ahead = tl.full((), 0, tl.int64)
    for first in range(0, n, CHUNK):
        value, inside = load(x, n, first), within(n, first)
        before = (value > mine) | ((value == mine) & (load_ids(ids, n, first) < token))
        ahead += tl.sum((inside & before).to(tl.int64), 0)
    return ahead + 1, mine


@triton.jit
def rank_in_row(here, keys, blocks, found, token, largest):
    """Return the token's rank within a whole row before its edits, and its distance from the largest.

    A token at −inf comes after all other tokens.
    """
    mine = raw_at(here, token, token < here[1])
    bound = ordered(mine)
    count = reaching(keys, blocks, tl.maximum(bound, NONE_KEY + 1), found)
    ahead = tl.full((), 0, tl.int64)
    for first in range(0, count, GROUP):
        id, inside = tokens_of(found, count, first, here[1])
        key = ordered(raw_at(here, id, inside))
        before = (key > bound) | ((key == bound) & (id < token))
        ahead += tl.sum((inside & before & (key > NONE_KEY)).to(tl.int64), 0)
    return ahead + 1, mine - largest


@triton.jit
def likeliest(here, keys, blocks, found, largest, count, x, ids):
    """Collect the `count` largest of a row before its edits, relative to the largest, ids ascending. Return how
    many."""
    bound = tl.maximum(ordered(reached_by(keys, blocks, count)), NONE_KEY + 1)
    listed = reaching(keys, blocks, bound, found)
    n = 0
    for first in range(0, listed, GROUP):
        id, inside = tokens_of(found, listed, first, here[1])
        value = raw_at(here, id, inside)
        n = append(x, ids, n, value - largest, id, inside & (ordered(value) >= bound))
    if n > count:
        n, _ = keep_first(x, ids, n, 0.0, count, 0.0)
    return n


@triton.jit
def write_top(x, ids, n, vocab, count, log_mass, logprobs, tokens):
    """Write the best tokens in order, one at a time. Fill missing places with the smallest other ids at −inf."""
    last = tl.full((), MOST, tl.int64)
    for place in range(tl.minimum(count, n)):
        best = tl.full((), NOBODY, tl.int64)
        for first in range(0, n, CHUNK):
            score = packed(ordered(load(x, n, first)), load_ids(ids, n, first))
            below = within(n, first) & (score < last)
            best = tl.maximum(best, tl.max(tl.where(below, score, NOBODY), 0))
        tl.store(logprobs + place, value_of(key_of(best)).to(tl.float64) - log_mass)
        tl.store(tokens + place, id_of(best))
        last = best
    place, other = tl.minimum(count, n), 0
    while (place < count) & (other < vocab):
        there = 0
        for first in range(0, n, CHUNK):
            same = (load_ids(ids, n, first) == other) & within(n, first)
            there += tl.sum(same.to(tl.int32), 0)
        if there == 0:
            tl.store(logprobs + place, float("-inf"))
            tl.store(tokens + place, other)
            place += 1
        other += 1
