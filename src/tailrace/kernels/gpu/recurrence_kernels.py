"""The Triton kernels of scans along sequences. scans.py launches them and explains why a token's bits are always the
same."""

from __future__ import annotations

import triton
import triton.language as tl

PLACES = ("starts", "ends", "slots", "rows", "entries")  # arguments of every scan


@triton.jit
def find_sequence(starts, ends, slots, sequence, rows, entries):
    """Return a sequence's first token, its number of tokens, the position of the first one, the first entry of its
    ring, and whether it has a state. Padding has none."""
    begin = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - begin
    first = tl.load(ends + sequence) - count
    slot = tl.load(slots + sequence)
    exists = (first >= 0) & (slot >= 0) & ((slot + 1) * rows <= entries)
    return begin, count, first, slot * rows, exists


@triton.jit
def normalized(row):
    """Return the row, scaled to length 1."""
    return row * tl.rsqrt(tl.sum(row * row, 0) + 1e-6)


@triton.jit(
    do_not_specialize=[
        *("query", "key", "value", "decay", "factor", "skip", "out", *PLACES),
        *("query_t", "query_g", "key_t", "key_g", "value_t", "value_h"),
        *("decay_t", "decay_h", "factor_t", "factor_h", "scale"),
    ]
)
def walk_heads(
    query,
    key,
    value,
    decay,
    factor,
    skip,
    memory,
    out,
    starts,
    ends,
    slots,
    rows,
    entries,
    query_t,
    query_g,
    key_t,
    key_g,
    value_t,
    value_h,
    decay_t,
    decay_h,
    factor_t,
    factor_h,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DELTA: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PER_ROW: tl.constexpr,
    SKIP: tl.constexpr,
    KEY_PAD: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Take COLUMNS columns of a head's state through all tokens of a sequence. The next token is read ahead."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    begin, count, first, ring, exists = find_sequence(starts, ends, slots, sequence, rows, entries)
    d, c = tl.arange(0, KEY_PAD), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_d, in_c = d < KEY_DIM, c < VALUE_DIM
    inside = in_d[:, None] & in_c[None, :]
    states = memory + head * (KEY_DIM * VALUE_DIM) + d[:, None] * VALUE_DIM + c[None, :]
    to = out + (begin.to(tl.int64) * HEADS + head) * VALUE_DIM + c
    if (count == 0) | (exists == 0):
        for j in range(count):
            tl.store(to + j * (HEADS * VALUE_DIM), tl.zeros((COLUMNS,), out.dtype.element_ty), mask=in_c)
        return
    entry = (ring + first % rows) * (HEADS * KEY_DIM * VALUE_DIM)
    state = tl.load(states + entry, mask=inside, other=0.0)
    state = tl.where(first > 0, state, 0.0)
    extra = 0.0
    if SKIP:
        extra = tl.load(skip + head)
    token, group = begin.to(tl.int64), head // GROUP
    q_at, k_at = query + token * query_t + group * query_g + d, key + token * key_t + group * key_g + d
    v_at = value + token * value_t + head * value_h + c
    f_at, g_at = factor + token * factor_t + head * factor_h, decay + token * decay_t + head * decay_h
    if PER_ROW:
        g_at += d
    next_q, next_k = tl.load(q_at, mask=in_d, other=0.0), tl.load(k_at, mask=in_d, other=0.0)
    next_v, next_f = tl.load(v_at, mask=in_c, other=0.0), tl.load(f_at)
    next_g = tl.load(g_at, mask=in_d, other=0.0) if PER_ROW else tl.load(g_at)
    for j in range(count):
        q, k, v, f, g = next_q.to(tl.float32), next_k.to(tl.float32), next_v.to(tl.float32), next_f, tl.exp(next_g)
        more = tl.where(j + 1 < count, 1, 0)  # the last token is read once again
        q_at, k_at, v_at = q_at + more * query_t, k_at + more * key_t, v_at + more * value_t
        f_at, g_at = f_at + more * factor_t, g_at + more * decay_t
        next_q, next_k = tl.load(q_at, mask=in_d, other=0.0), tl.load(k_at, mask=in_d, other=0.0)
        next_v, next_f = tl.load(v_at, mask=in_c, other=0.0), tl.load(f_at)
        next_g = tl.load(g_at, mask=in_d, other=0.0) if PER_ROW else tl.load(g_at)
        if NORMALIZE:
            q, k = normalized(q), normalized(k)
        state *= g[:, None] if PER_ROW else g
        update = v
        if DELTA:
            update -= tl.sum(state * k[:, None], 0)
        update *= f
        state = tl.fma(tl.broadcast_to(k[:, None], state.shape), tl.broadcast_to(update[None, :], state.shape), state)
        result = tl.sum(state * (q * scale)[:, None], 0)
        if SKIP:
            result += v * extra
        tl.store(to, result.to(out.dtype.element_ty), mask=in_c)
        to += HEADS * VALUE_DIM
        if j + rows >= count:
            entry = (ring + (first + j + 1) % rows) * (HEADS * KEY_DIM * VALUE_DIM)
            tl.store(states + entry, state, mask=inside)


@triton.jit(
    do_not_specialize=[
        *("x", "b", "c", "step", "rate", "out", *PLACES),
        *("x_t", "b_t", "c_t", "step_t", "rate_c", "rate_s"),
    ]
)
def walk_channels(
    x,
    b,
    c,
    step,
    rate,
    memory,
    out,
    starts,
    ends,
    slots,
    rows,
    entries,
    x_t,
    b_t,
    c_t,
    step_t,
    rate_c,
    rate_s,
    CHANNELS: tl.constexpr,
    STATES: tl.constexpr,
    STATES_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take the states of BLOCK channels through all tokens of a sequence. The next token is read ahead."""
    begin, count, first, ring, exists = find_sequence(starts, ends, slots, tl.program_id(0), rows, entries)
    s, n = tl.arange(0, STATES_PAD), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_s, in_n = s < STATES, n < CHANNELS
    inside = in_s[:, None] & in_n[None, :]
    states = memory + s[:, None] * CHANNELS + n[None, :]
    token = begin.to(tl.int64)
    to = out + token * CHANNELS + n
    if (count == 0) | (exists == 0):
        for j in range(count):
            tl.store(to + j * CHANNELS, tl.zeros((BLOCK,), tl.float32), mask=in_n)
        return
    entry = (ring + first % rows) * (STATES * CHANNELS)
    state = tl.load(states + entry, mask=inside, other=0.0)
    state = tl.where(first > 0, state, 0.0)
    rates = tl.load(rate + n.to(tl.int64)[None, :] * rate_c + s[:, None] * rate_s, mask=inside, other=0.0)
    x_at, step_at, b_at, c_at = x + token * x_t + n, step + token * step_t + n, b + token * b_t + s, c + token * c_t + s
    next_x, next_step = tl.load(x_at, mask=in_n, other=0.0), tl.load(step_at, mask=in_n, other=0.0)
    next_b, next_c = tl.load(b_at, mask=in_s, other=0.0), tl.load(c_at, mask=in_s, other=0.0)
    for j in range(count):
        width, before, after = next_step, next_b.to(tl.float32), next_c.to(tl.float32)
        inner = next_x.to(tl.float32) * width
        more = tl.where(j + 1 < count, 1, 0)  # the last token is read once again
        x_at, step_at, b_at, c_at = x_at + more * x_t, step_at + more * step_t, b_at + more * b_t, c_at + more * c_t
        next_x, next_step = tl.load(x_at, mask=in_n, other=0.0), tl.load(step_at, mask=in_n, other=0.0)
        next_b, next_c = tl.load(b_at, mask=in_s, other=0.0), tl.load(c_at, mask=in_s, other=0.0)
        decayed = state * tl.exp(rates * width[None, :])
        state = tl.fma(
            tl.broadcast_to(inner[None, :], state.shape), tl.broadcast_to(before[:, None], state.shape), decayed
        )
        tl.store(to, tl.sum(state * after[:, None], 0), mask=in_n)
        to += CHANNELS
        if j + rows >= count:
            entry = (ring + (first + j + 1) % rows) * (STATES * CHANNELS)
            tl.store(states + entry, state, mask=inside)
