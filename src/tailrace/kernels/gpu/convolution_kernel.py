"""The Triton kernel of a causal convolution per channel. scans.py launches it."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.recurrence_kernels import PLACES, find_sequence


@triton.jit
def finished(sums, bias, out, n, inside, BIAS: tl.constexpr, SILU: tl.constexpr):
    """Return the sums with the bias of channels n, rounded; then their SiLU."""
    if BIAS:
        sums += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    rounded = sums.to(out.dtype.element_ty)
    if SILU:
        wide = rounded.to(tl.float32)
        rounded = (wide / (1.0 + tl.exp(-wide))).to(out.dtype.element_ty)
    return rounded


@triton.jit
def find_owners(starts, t, sequences, halvings):
    """Return the sequence of each token, by a search in `starts`."""
    low = t * 0
    high = low + sequences
    for _ in range(halvings):
        middle = (low + high) // 2
        after = tl.load(starts + middle) <= t
        low, high = tl.where(after, middle, low), tl.where(after, high, middle)
    return low


@triton.jit
def begin_sequence(
    x,
    weight,
    bias,
    memory,
    out,
    starts,
    ends,
    slots,
    rows,
    entries,
    x_t,
    weight_c,
    n,
    inside,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
):
    """Compute a sequence's tokens that see inputs in memory, then write the inputs before its last positions.

    The entry that was read may be among those that are written: it is written last, as its position says. A barrier
    lies between the reads and the writes of an entry.
    """
    begin, count, first, ring, exists = find_sequence(starts, ends, slots, tl.program_id(0), rows, entries)
    BACK: tl.constexpr = WIDTH - 1
    token = begin.to(tl.int64)
    old = memory + (ring + first % rows) * (BACK * CHANNELS)
    kept = tl.where(exists & (first > 0), CHANNELS, 0)  # channels whose inputs are in memory
    for j in range(tl.minimum(count, BACK)):
        sums = tl.zeros(n.shape, tl.float32)
        for k in tl.static_range(WIDTH):
            offset = j - BACK + k
            from_batch, from_memory = n < tl.where(offset >= 0, CHANNELS, 0), n < tl.where(offset < 0, kept, 0)
            now = tl.load(x + (token + offset) * x_t + n, mask=from_batch, other=0.0)
            before = tl.load(old + (BACK + offset) * CHANNELS + n, mask=from_memory, other=0.0)
            tap = tl.load(weight + n * weight_c + k, mask=inside, other=0.0).to(tl.float32)
            term = tl.where(from_batch, now, before).to(tl.float32) * tap
            sums = tl.where(from_batch | from_memory, sums + term, sums)
        result = finished(sums, bias, out, n, inside, BIAS, SILU)
        result = tl.where(exists, result, tl.zeros(n.shape, out.dtype.element_ty))
        tl.store(out + (token + j) * CHANNELS + n, result, mask=inside)
    r = tl.arange(0, WIDTH_PAD)
    in_r = (r < BACK)[:, None]
    beyond = tl.maximum(count - rows, 0)  # tokens whose inputs are not kept
    for i in range(tl.where(exists, tl.minimum(count, rows), 0)):
        j = beyond + (i + rows - beyond % rows) % rows
        offset = (j + 1 - BACK + r)[:, None]
        from_batch = inside[None, :] & in_r & (offset >= 0)
        from_memory = (n < kept)[None, :] & in_r & (offset < 0)
        now = tl.load(x + (token + offset) * x_t + n[None, :], mask=from_batch, other=0.0)
        before = tl.load(old + (BACK + offset) * CHANNELS + n[None, :], mask=from_memory, other=0.0)
        tl.debug_barrier()
        to = memory + (ring + (first + j + 1) % rows) * (BACK * CHANNELS) + r[:, None] * CHANNELS + n[None, :]
        tl.store(to, tl.where(from_batch, now, before), mask=inside[None, :] & in_r)


@triton.jit(do_not_specialize=[*PLACES, "tokens", "sequences", "halvings"])
def convolve_rows(
    x,
    weight,
    bias,
    memory,
    out,
    starts,
    ends,
    slots,
    rows,
    entries,
    tokens,
    sequences,
    halvings,
    x_t,
    weight_c,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute BLOCK channels. The first `sequences` programs have a sequence each: its memory, and its tokens that see
    the memory. The others have TOKENS tokens each, but for those."""
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < CHANNELS
    if tl.program_id(0) < sequences:
        begin_sequence(
            x,
            weight,
            bias,
            memory,
            out,
            starts,
            ends,
            slots,
            rows,
            entries,
            x_t,
            weight_c,
            n,
            inside,
            CHANNELS,
            WIDTH,
            WIDTH_PAD,
            BIAS,
            SILU,
        )
        return
    t = (tl.program_id(0) - sequences) * TOKENS + tl.arange(0, TOKENS)
    owner = find_owners(starts, tl.minimum(t, tokens - 1), sequences, halvings)
    begin, _, _, _, exists = find_sequence(starts, ends, slots, owner, rows, entries)
    mine = (t < tokens) & (t - begin >= WIDTH - 1)
    whole = mine[:, None] & inside[None, :]
    sums = tl.zeros((TOKENS, BLOCK), tl.float32)
    for k in tl.static_range(WIDTH):
        now = tl.load(x + (t - (WIDTH - 1) + k).to(tl.int64)[:, None] * x_t + n[None, :], mask=whole, other=0.0)
        tap = tl.load(weight + n * weight_c + k, mask=inside, other=0.0).to(tl.float32)
        sums += now.to(tl.float32) * tap[None, :]
    result = finished(sums, bias, out, n[None, :], inside[None, :], BIAS, SILU)
    result = tl.where(exists[:, None], result, tl.zeros((TOKENS, BLOCK), out.dtype.element_ty))
    tl.store(out + t.to(tl.int64)[:, None] * CHANNELS + n[None, :], result, mask=whole)
