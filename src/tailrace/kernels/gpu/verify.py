"""Verification of drafts, request by request. Counterpart of csrc/sample/verify.cpp. sampling/verify.py has the
rules."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.constants import TYPICAL_DELTA, TYPICAL_EPSILON
from tailrace.kernels.gpu.candidates import entropy, load, load_ids, total, weight, within
from tailrace.kernels.gpu.columns import DRAFT, POSITION, PROPOSAL, RULE, SLOT, START, column, proposal_of
from tailrace.kernels.gpu.draw import ACCEPT, BY_BLOCK, RESIDUAL, scored, winner
from tailrace.kernels.gpu.noise import uniform_of
from tailrace.kernels.gpu.order import NOBODY, STATUSES, id_of
from tailrace.kernels.gpu.program import KEY
from tailrace.kernels.gpu.sample import BLOCKWISE, EXACT, TYPICAL_RULE
from tailrace.kernels.gpu.scan import CHUNK

EPSILON, DELTA = tl.constexpr(TYPICAL_EPSILON), tl.constexpr(TYPICAL_DELTA)
LEAST = tl.constexpr(1.1754943508222875e-38)  # a remainder below it counts as nothing
LEAST_DOUBLE = tl.constexpr(1e-300)  # less than the sum of any remainder; avoids 0 / 0 in a branch that is not taken


@triton.jit(do_not_specialize=["width"])
def verify_rows(step, tables, work, out, width):
    """Write out.token_ids, int64 [N, width], −1 beyond the tokens; and out.num_tokens and out.status, int64 [N]."""
    i = tl.program_id(0).to(tl.int64)
    first, last = column(step, START, i), column(step, START, i + 1) - 1
    record = tables.records + column(step, SLOT, first) * tables.fields
    tokens = out.token_ids + i * width
    for j in range(width):
        tl.store(tokens + j, -1)
    tl.debug_barrier()
    if column(step, RULE, first) == BLOCKWISE:
        by_block(step, record, work, tokens, out, i, first, last)
    else:
        one_by_one(step, record, work, tokens, out, i, first, last)


@triton.jit
def one_by_one(step, record, work, tokens, out, i, first, last):
    accepted, state, row = tl.full((), 0, tl.int64), tl.full((), STATUSES[0], tl.int64), first
    while row <= last:
        state = tl.load(work.status + row)
        draft, token = column(step, DRAFT, row), tl.load(work.token + row)
        rule = column(step, RULE, row)
        if state != STATUSES[0]:
            row = last + 1
        else:
            if (draft >= 0) & (rule != EXACT):
                token = settled(step, record, work, row, rule, draft, token)
            tl.store(tokens + accepted, token)
            accepted += 1
            row = tl.where(token == draft, row + 1, last + 1)
    tl.store(out.num_tokens + i, accepted)
    tl.store(out.status + i, tl.where(accepted > 0, STATUSES[0], state))


@triton.jit
def settled(step, record, work, row, rule, draft, token):
    """Return the draft if it is accepted, else its replacement. token: the token that plain sampling draws."""
    x, ids = work.x + row * step.vocab, work.ids + row * step.vocab
    n, key, position = tl.load(work.count + row), tl.load(record + KEY), column(step, POSITION, row)
    whole = total(x, n)
    p = share_of(x, ids, n, draft) / whole
    if rule == TYPICAL_RULE:
        h, _ = entropy(x, n, whole)
        token = tl.where(p > tl.minimum(tl.exp(-h) * DELTA, tl.full((), EPSILON, tl.float64)), draft, token)
    else:
        mine, dense = tl.full((), 1.0, tl.float64), column(step, PROPOSAL, row) != 0
        if dense:
            mine = tl.load(proposal_of(step, row) + draft).to(tl.float64)
        if uniform_of(key, position, ACCEPT) * mine < p:
            token = draft
        else:
            best = tl.full((), NOBODY, tl.int64)
            if dense:
                best = winner_of_rest(step, x, ids, n, row, 1.0 / whole, key, position)
            else:
                best = winner(x, ids, n, key, position, RESIDUAL, draft)
            token = id_of(or_of_all(best, x, ids, n, key, position))
    return token


@triton.jit
def by_block(step, record, work, tokens, out, i, first, last):
    """Verify by algorithm 2 of Sun et al. (arXiv 2403.10444).

    After each row, `accepted` is the longest accepted prefix so far, and `follower` the token after it.
    """
    key, start = tl.load(record + KEY), column(step, POSITION, first)
    p, accepted = tl.full((), 1.0, tl.float64), tl.full((), -1, tl.int64)
    follower, row, state = tl.full((), -1, tl.int64), first, tl.full((), STATUSES[0], tl.int64)
    while row <= last:
        state = tl.load(work.status + row)
        if state != STATUSES[0]:
            row = last + 1
        else:
            x, ids = work.x + row * step.vocab, work.ids + row * step.vocab
            n, draft, position = tl.load(work.count + row), column(step, DRAFT, row), column(step, POSITION, row)
            whole = total(x, n)
            rest, h = p, p
            if draft >= 0:
                rest = mass_of_rest(step, x, ids, n, row, p / whole)
                h = tl.where(rest > 0.0, rest / tl.maximum(rest + (1.0 - p), LEAST_DOUBLE), 0.0)
            place = (row - first).to(tl.uint32)
            if (row == first) | ((rest > 0.0) & (uniform_of(key, start, BY_BLOCK + place) <= h)):
                accepted = row - first
                if draft < 0:
                    follower = id_of(winner(x, ids, n, key, position, RESIDUAL, -1))
                else:
                    best = winner_of_rest(step, x, ids, n, row, p / whole, key, position)
                    follower = id_of(or_of_all(best, x, ids, n, key, position))
            if draft >= 0:
                mine = tl.load(proposal_of(step, row) + draft).to(tl.float64)
                following = share_of(x, ids, n, draft) / whole
                grown = tl.minimum(p * following / tl.maximum(mine, 1e-300), 1.0)
                certain = tl.where(following > 0.0, 1.0, 0.0).to(tl.float64)
                p = tl.where(mine > 0.0, grown, certain)
            row = tl.where(p == 0.0, last + 1, row + 1)
    for j in range(accepted):
        tl.store(tokens + j, column(step, DRAFT, first + j))
    if accepted >= 0:
        tl.store(tokens + accepted, follower)
    tl.store(out.num_tokens + i, accepted + 1)
    tl.store(out.status + i, tl.where(accepted >= 0, STATUSES[0], state))


@triton.jit
def or_of_all(best, x, ids, n, key, position):
    """Return `best`. If rounding leaves nothing of a remainder, p and q are equal: then draw from p."""
    if best == NOBODY:
        best = winner(x, ids, n, key, position, RESIDUAL, -1)
    return best


@triton.jit
def share_of(x, ids, n, token):
    """Return e^x of one token; 0 if it is not a candidate."""
    found = tl.full((), 0.0, tl.float64)
    for first in range(0, n, CHUNK):
        mine = (load_ids(ids, n, first) == token) & within(n, first)
        found += tl.sum(tl.where(mine, weight(load(x, n, first)), 0.0), 0).to(tl.float64)
    return found


@triton.jit
def rest_of(step, x, ids, n, row, scale, first):
    """Return a chunk of max(0, scale · e^x − q), and its ids."""
    token, inside = load_ids(ids, n, first), within(n, first)
    q = tl.load(proposal_of(step, row) + token, mask=inside, other=0.0).to(tl.float64)
    rest = scale * weight(load(x, n, first)).to(tl.float64) - q
    return tl.where(inside & (rest >= LEAST), rest, 0.0), token


@triton.jit
def mass_of_rest(step, x, ids, n, row, scale):
    found = tl.full((), 0.0, tl.float64)
    for first in range(0, n, CHUNK):
        rest, _ = rest_of(step, x, ids, n, row, scale, first)
        found += tl.sum(rest, 0)
    return found


@triton.jit
def winner_of_rest(step, x, ids, n, row, scale, key, position):
    best = tl.full((), NOBODY, tl.int64)
    for first in range(0, n, CHUNK):
        rest, token = rest_of(step, x, ids, n, row, scale, first)
        left = rest > 0.0
        score = tl.log(tl.where(left, rest, 1.0).to(tl.float32).to(tl.float64)).to(tl.float32)
        best = tl.maximum(best, tl.max(scored(score, token, left, key, position, RESIDUAL), 0))
    return best
