"""Paged attention in Triton: two ways, chosen by each sequence for itself, since the host does not know what is in
query_start.

- Up to SHORT tokens in the step (decodes, drafts): split over chunks of the positions (flash-decoding). The chunks are
  the same whatever the batch: 16 of 256 positions, 16 of 512, and so on, so that short contexts are split finely and
  long ones leave few partial results. `join` adds the chunks' partial softmaxes in their order: a token's result
  depends neither on the other sequences, nor on how many programs there are, nor on whether it was a draft.
- More tokens (prefills): one program per tile of rows (tokens × the query heads of one KV head), which goes over all
  positions.

Both are launched wherever both may be needed; a program whose sequence goes the other way ends at once.

(More than 300 lines: two kernels for one operation, which share the online softmax.)
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.cache import KVCache

SHORT = 8  # tokens of a sequence
OCTAVE = tl.constexpr(16)  # of start_of
MOST = tl.constexpr(256)  # chunks: 2^28 positions
FEW_ROWS = 16  # of a tile of a short sequence; the least that tensor cores take
ROW_BYTES = 128  # rows of a tile · bytes of an entry: 64 rows, in fp32 32, beyond which registers spill
PROGRAMS = 1024  # enough to fill a GPU
LOG2E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def make_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> KVCache:
    keys, values = (torch.empty((num_blocks, heads, block_size, dim), dtype=dtype, device=device) for dim in dims)
    return KVCache(keys, values, heads, block_size, *dims)


@triton.jit
def store_rows(
    key,
    key_t,
    key_h,
    value,
    value_t,
    value_h,
    slots,
    keys,
    values,
    capacity,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + t)
    if (slot < 0) | (slot >= capacity):
        return
    h, d, e = tl.arange(0, HEADS_PAD)[:, None], tl.arange(0, DIM_PAD)[None, :], tl.arange(0, VALUE_PAD)[None, :]
    place = slot // SIZE * (HEADS * SIZE) + h * SIZE + slot % SIZE
    inside = (h < HEADS) & (d < DIM)
    k = tl.load(key + t * key_t + h.to(tl.int64) * key_h + d, mask=inside)
    tl.store(keys + place * DIM + d, k.to(keys.dtype.element_ty), mask=inside)
    inside = (h < HEADS) & (e < VALUE_DIM)
    v = tl.load(value + t * value_t + h.to(tl.int64) * value_h + e, mask=inside)
    tl.store(values + place * VALUE_DIM + e, v.to(values.dtype.element_ty), mask=inside)


@triton.jit
def start_of(chunk):
    """The first position of a chunk; for the host too, as start_of.fn: hence no constexpr in it."""
    return (((chunk % 16 + 16) << (chunk // 16)) - 16) * 256


@triton.jit
def chunks_up_to(position):
    """How many chunks begin at or before it."""
    return tl.sum((start_of(tl.arange(0, MOST)) <= position).to(tl.int32), 0)


@triton.jit
def product(a, b, start):
    """start + a · b, fp32."""
    if INTERPRETED:  # it would multiply the bits of bf16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, start, input_precision="ieee")


@triton.jit
def over(
    q,
    at,
    first,
    last,
    table,
    keys,
    values,
    head,
    scale,
    window,
    reach,
    softcap,
    CAPPED: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Online softmax of q [ROWS, DIM_PAD], of tokens at positions `at`, over the positions first … last − 1; first is a
    multiple of BLOCK. Returns the largest score in units of log 2, Σ weight, Σ weight · value."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, VALUE_PAD), tl.float32)
    d, e = tl.arange(0, DIM_PAD), tl.arange(0, VALUE_PAD)
    oldest = tl.maximum(at - window + 1, at // reach * reach)
    for start in range(first, last, BLOCK):
        n = start + tl.arange(0, BLOCK)
        there = n < last  # what lies behind is of no one, NaN perhaps
        block = tl.load(table + n // SIZE, mask=there, other=0).to(tl.int64)
        place = block * (HEADS * SIZE) + head * SIZE + n % SIZE
        k = tl.load(keys + place[None, :] * DIM + d[:, None], mask=there[None, :] & (d < DIM)[:, None], other=0.0)
        inside = there[:, None] & (e < VALUE_DIM)[None, :]
        v = tl.load(values + place[:, None] * VALUE_DIM + e[None, :], mask=inside, other=0.0)
        score = product(q, k, tl.zeros((ROWS, BLOCK), tl.float32)) * scale
        if CAPPED:
            small = tl.exp2(tl.abs(score / softcap) * LOG2E * -2.0)
            score = tl.where(score < 0.0, -softcap, softcap) * ((1.0 - small) / (1.0 + small))
        seen = there[None, :] & (n[None, :] <= at[:, None]) & (n[None, :] >= oldest[:, None])
        score = tl.where(seen, score * LOG2E, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of a row that sees nothing yet
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(top - base)
        mass = mass * shrink + tl.sum(weight, 1)
        mixed = product(weight.to(v.dtype), v, mixed * shrink[:, None])
        top = higher
    return top, mass, mixed


@triton.jit
def first_seen(at, window, reach):
    """The oldest position that a token at `at` sees."""
    return tl.maximum(tl.maximum(at - window + 1, at // reach * reach), 0)


@triton.jit(do_not_specialize=["table_stride", "tiles", "most", "place_stride", "chunks", "window", "reach"])
def attend_chunks(
    query,
    query_t,
    query_h,
    keys,
    values,
    tables,
    table_stride,
    query_start,
    kv_len,
    tops,
    masses,
    mixtures,
    tiles,
    most,
    place_stride,
    chunks,
    scale,
    window,
    reach,
    softcap,
    CAPPED: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every parts-th chunk of a tile of a sequence of at most `most` tokens. tops, masses: float32 [places, Hq,
    chunks]; mixtures: float32 [places, Hq, chunks, D]."""
    sequence, tile, head = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    part, parts = tl.program_id(2), tl.num_programs(2)
    begin = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - begin
    TOKENS: tl.constexpr = ROWS // GROUP
    if (count > most) | (tile * TOKENS >= count):
        return
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM_PAD)
    token, mine = tile * TOKENS + r // GROUP, head * GROUP + r % GROUP
    inside = (r < TOKENS * GROUP) & (token < count)
    from_row = (begin + token).to(tl.int64) * query_t + mine.to(tl.int64) * query_h
    q = tl.load(query + from_row[:, None] + d[None, :], mask=inside[:, None] & (d < DIM)[None, :], other=0.0)

    before = tl.load(kv_len + sequence) - count
    newest = before + tl.minimum((tile + 1) * TOKENS, count) - 1
    oldest = first_seen(before + tile * TOKENS, window, reach) // BLOCK * BLOCK
    place = tl.where(place_stride == 0, begin, sequence * place_stride) + token
    row = (place.to(tl.int64) * (HEADS * GROUP) + mine) * chunks
    for chunk in range(part, chunks_up_to(newest), parts):
        first, last = tl.maximum(start_of(chunk), oldest), tl.minimum(start_of(chunk + 1), newest + 1)
        top, mass, mixed = over(
            q,
            before + token,
            first,
            last,
            tables + sequence.to(tl.int64) * table_stride,
            keys,
            values,
            head,
            scale,
            window,
            reach,
            softcap,
            CAPPED,
            HEADS,
            SIZE,
            DIM,
            VALUE_DIM,
            ROWS,
            DIM_PAD,
            VALUE_PAD,
            BLOCK,
        )
        tl.store(tops + row + chunk, top, mask=inside)
        tl.store(masses + row + chunk, mass, mask=inside)
        some = inside & (top > float("-inf"))
        e = tl.arange(0, VALUE_PAD)
        to = mixtures + (row + chunk)[:, None] * VALUE_DIM + e[None, :]
        tl.store(to, mixed, mask=some[:, None] & (e < VALUE_DIM)[None, :])


@triton.jit(do_not_specialize=["most", "place_stride", "chunks"])
def join(
    query_start,
    kv_len,
    tops,
    masses,
    mixtures,
    sinks,
    out,
    most,
    place_stride,
    chunks,
    SINKS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
):
    """One token and head of what attend_chunks has computed."""
    sequence, token = tl.program_id(0) // most, tl.program_id(0) % most
    head, heads = tl.program_id(1), tl.num_programs(1)
    begin = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - begin
    if (count > most) | (token >= count):
        return
    used = chunks_up_to(tl.load(kv_len + sequence) - count + token)
    place = tl.where(place_stride == 0, begin, sequence * place_stride) + token
    row = (place.to(tl.int64) * heads + head) * chunks
    c, d = tl.arange(0, OCTAVE), tl.arange(0, VALUE_PAD)

    top = tl.full((), float("-inf"), tl.float32)
    for first in range(0, used, OCTAVE):
        top = tl.maximum(top, tl.max(tl.load(tops + row + first + c, mask=first + c < used, other=float("-inf")), 0))
    top = tl.where(top == float("-inf"), 0.0, top)
    mass = tl.full((), 0.0, tl.float32)
    if SINKS:
        sink = tl.load(sinks + head) * LOG2E
        top = tl.maximum(top, sink)
        mass = tl.exp2(sink - top)
    mixed = tl.zeros((VALUE_PAD,), tl.float32)
    for first in range(0, used, OCTAVE):
        at = row + first + c
        mine = tl.load(tops + at, mask=first + c < used, other=float("-inf"))
        weight = tl.exp2(mine - top)
        mass += tl.sum(weight * tl.load(masses + at, mask=first + c < used, other=0.0), 0)
        some = (mine > float("-inf"))[:, None] & (d < VALUE_DIM)[None, :]
        each = tl.load(mixtures + at[:, None] * VALUE_DIM + d[None, :], mask=some, other=0.0)
        mixed += tl.sum(weight[:, None] * each, 0)
    mixed = mixed / tl.where(mass == 0.0, 1.0, mass)
    to = out + ((begin + token).to(tl.int64) * heads + head) * VALUE_DIM + d
    tl.store(to, mixed.to(out.dtype.element_ty), mask=d < VALUE_DIM)


@triton.jit(do_not_specialize=["table_stride", "sequences", "few", "window", "reach"])
def attend_tiles(
    query,
    query_t,
    query_h,
    keys,
    values,
    tables,
    table_stride,
    query_start,
    kv_len,
    sinks,
    out,
    sequences,
    few,
    scale,
    window,
    reach,
    softcap,
    SINKS: tl.constexpr,
    CAPPED: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One tile of a sequence of more than `few` tokens. The tiles of sequence i begin at query_start[i] // TOKENS + i:
    so their number is bounded without a look at query_start."""
    number, head = tl.program_id(0), tl.program_id(1)
    TOKENS: tl.constexpr = ROWS // GROUP
    low = tl.full((), 0, tl.int32)
    high = low + sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        before = tl.load(query_start + middle) // TOKENS + middle <= number
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    begin = tl.load(query_start + low)
    count = tl.load(query_start + low + 1) - begin
    tile = number - begin // TOKENS - low
    if (count <= few) | (tile * TOKENS >= count):
        return
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM_PAD)
    token, mine = tile * TOKENS + r // GROUP, head * GROUP + r % GROUP
    inside = (r < TOKENS * GROUP) & (token < count)
    wanted = inside[:, None] & (d < DIM)[None, :]
    from_row = (begin + token).to(tl.int64) * query_t + mine.to(tl.int64) * query_h
    q = tl.load(query + from_row[:, None] + d[None, :], mask=wanted, other=0.0)

    before = tl.load(kv_len + low) - count
    newest = before + tl.minimum((tile + 1) * TOKENS, count) - 1
    oldest = first_seen(before + tile * TOKENS, window, reach) // BLOCK * BLOCK
    top, mass, mixed = over(
        q,
        before + token,
        oldest,
        newest + 1,
        tables + low.to(tl.int64) * table_stride,
        keys,
        values,
        head,
        scale,
        window,
        reach,
        softcap,
        CAPPED,
        HEADS,
        SIZE,
        DIM,
        VALUE_DIM,
        ROWS,
        DIM_PAD,
        VALUE_PAD,
        BLOCK,
    )
    if SINKS:
        sink = tl.load(sinks + mine, mask=inside, other=0.0) * LOG2E
        higher = tl.maximum(top, sink)
        mixed = mixed * tl.exp2(top - higher)[:, None]
        mass = mass * tl.exp2(top - higher) + tl.exp2(sink - higher)
    mixed = mixed / tl.where(mass == 0.0, 1.0, mass)[:, None]
    e = tl.arange(0, VALUE_PAD)
    to = out + ((begin + token).to(tl.int64) * (HEADS * GROUP) + mine)[:, None] * VALUE_DIM + e[None, :]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=inside[:, None] & (e < VALUE_DIM)[None, :])


def rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] with the entries of a head side by side; tokens and heads may be strided."""
    return x if x.stride(2) == 1 else x.contiguous()


def padded(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


def block_of(dim: int, itemsize: int) -> int:
    """Positions whose keys take 16 KiB: so many fit into any GPU's shared memory, with their values, several times
    over."""
    return min(64, max(16, 2**14 // (padded(dim) * itemsize)))


@cache
def chunks_of(positions: int) -> int:
    """Chunks that so many positions touch."""
    count = sum(start_of.fn(chunk) < positions for chunk in range(MOST.value))
    if count == MOST.value:
        raise ValueError(f"attention over {positions} positions is not supported")
    return count


def store_kv(cache: KVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    shape = (slots.shape[0], cache.heads, cache.head_dim)
    wide = (*shape[:2], cache.value_dim)
    if key.shape != shape or value.shape != wide:
        raise ValueError(f"key and value must be {shape} and {wide}, got {tuple(key.shape)} and {tuple(value.shape)}")
    if shape[0] == 0:
        return
    key, value = rows(key), rows(value)
    with torch.cuda.device_of(key):
        store_rows[(shape[0],)](
            key,
            key.stride(0),
            key.stride(1),
            value,
            value.stride(0),
            value.stride(1),
            slots.contiguous(),
            cache.keys,
            cache.values,
            cache.keys.shape[0] * cache.block_size,
            cache.heads,
            cache.block_size,
            cache.head_dim,
            cache.value_dim,
            triton.next_power_of_2(cache.heads),
            padded(cache.head_dim),
            padded(cache.value_dim),
        )


def paged_attention(
    query: torch.Tensor,
    cache: KVCache,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    tokens, heads, dim = query.shape
    sequences = kv_len.shape[0]
    if dim != cache.head_dim or heads % cache.heads or query.dtype != cache.dtype:
        raise ValueError(
            f"query must be [T, a multiple of {cache.heads}, {cache.head_dim}] of {cache.dtype}, "
            f"got {query.dtype} {tuple(query.shape)}"
        )
    if block_tables.dim() != 2 or block_tables.shape[0] != sequences or query_start.shape != (sequences + 1,):
        raise ValueError(
            f"for kv_len [{sequences}] block_tables must be [{sequences}, B] and query_start [{sequences + 1}], "
            f"got {tuple(block_tables.shape)} and {tuple(query_start.shape)}"
        )
    if tokens < sequences:
        raise ValueError(f"every sequence has a token; got {tokens} tokens of {sequences} sequences")
    sinks = options.check_sinks(heads, query.device)
    out = torch.empty((tokens, heads, cache.value_dim), dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out
    query, tables = rows(query), block_tables if block_tables.stride(1) == 1 else block_tables.contiguous()
    query_start, kv_len = query_start.contiguous(), kv_len.contiguous()
    group, wide, block = heads // cache.heads, padded(dim), block_of(dim, query.element_size())
    value_dim, value_wide, has_sinks = cache.value_dim, padded(cache.value_dim), sinks is not None
    heads_sinks = query if sinks is None else sinks  # not read without sinks
    chunks = chunks_of(tables.shape[1] * cache.block_size)
    longest = tokens - sequences + 1
    most = min(SHORT, longest)
    strides = query.stride(0), query.stride(1)
    where = (query, *strides, cache.keys, cache.values, tables, tables.stride(0), query_start, kv_len)
    how = (options.scale, options.window or 2**30, options.chunk or 2**30, options.softcap)
    shape = (options.softcap != 0.0, group, cache.heads, cache.block_size, dim, value_dim)
    with torch.cuda.device_of(query):
        if sequences > 1 or tokens <= SHORT:
            few = max(FEW_ROWS, triton.next_power_of_2(group))
            tiles = triton.cdiv(most, few // group)
            places, place_stride = (tokens, 0) if tokens <= sequences * most else (sequences * most, most)
            size = places * heads * chunks
            mixtures = torch.empty(size * value_dim, dtype=torch.float32, device=query.device)
            # rows of whole 16 bytes: kernels are compiled anew for less aligned addresses
            tops, masses = torch.empty((2, -(-size // 4) * 4), dtype=torch.float32, device=query.device)
            parts = max(1, min(chunks, PROGRAMS // (sequences * tiles * cache.heads)))
            attend_chunks[(sequences * tiles, cache.heads, parts)](
                *where,
                tops,
                masses,
                mixtures,
                tiles,
                most,
                place_stride,
                chunks,
                *how,
                *shape,
                few,
                wide,
                value_wide,
                block,
            )
            partial = (tops, masses, mixtures, heads_sinks)
            join[(sequences * most, heads)](
                query_start, kv_len, *partial, out, most, place_stride, chunks, has_sinks, value_dim, value_wide
            )
        if longest > SHORT:
            many = max(ROW_BYTES // query.element_size(), triton.next_power_of_2(group))
            attend_tiles[(tokens // (many // group) + sequences, cache.heads)](
                *where, heads_sinks, out, sequences, SHORT, *how, has_sinks, *shape, many, wide, value_wide, block
            )
    return out
