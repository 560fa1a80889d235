"""The Triton kernels of paged attention. attention.py launches them and describes when each runs."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.online_softmax import (
    LOG2E,
    bits_of,
    chunks_up_to,
    over,
    over_chunks,
    power_of_two,
    start_of,
    tile_of,
)

OCTAVE = tl.constexpr(16)  # chunks of one size, see start_of
AT_ONCE = tl.constexpr(8)  # chunks whose partial results join reads together


@triton.jit(
    do_not_specialize=[
        *("selected_t", "selected_h", "table_stride"),
        *("tiles", "most", "place_stride", "chunks", "window", "reach"),
    ]
)
def attend_chunks(
    query,
    query_t,
    query_h,
    keys,
    values,
    selected,
    selected_t,
    selected_h,
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
    SELECTED: tl.constexpr,
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
    """Compute every parts-th chunk of a tile of a sequence of at most `most` tokens. tops, masses: float32 [places, Hq,
    chunks]. mixtures: float32 [places, Hq, chunks, D]."""
    sequence, tile, head = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    part, parts = tl.program_id(2), tl.num_programs(2)
    begin = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - begin
    TOKENS: tl.constexpr = ROWS // GROUP
    if (count > most) | (tile * TOKENS >= count):
        return
    before = tl.load(kv_len + sequence) - count
    token, mine, inside, q, oldest, newest = tile_of(
        query, query_t, query_h, begin, count, tile, head, before, window, reach, GROUP, DIM, ROWS, DIM_PAD, BLOCK
    )
    bits = bits_of(selected, selected_t, selected_h, begin, count, token, head)
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
            bits,
            head,
            scale,
            window,
            reach,
            softcap,
            CAPPED,
            SELECTED,
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
    """Combine the partial results of attend_chunks for one token and head."""
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
    mass = tl.full((), 0.0, tl.float32)
    if SINKS:
        sink = tl.load(sinks + head) * LOG2E
        top = tl.maximum(top, tl.ceil(sink))
        mass = tl.exp2(sink - tl.ceil(sink)) * power_of_two(tl.ceil(sink) - top)
    top = tl.where(top == float("-inf"), 0.0, top)
    mixed = tl.zeros((VALUE_PAD,), tl.float32)
    for first in range(0, used, AT_ONCE):
        for i in tl.static_range(AT_ONCE):  # the order of the sums is that of over_chunks
            at = row + tl.minimum(first + i, used - 1)
            weight = tl.where(first + i < used, power_of_two(tl.load(tops + at) - top), 0.0)
            each = tl.load(mixtures + at * VALUE_DIM + d, mask=d < VALUE_DIM, other=0.0)
            mass += weight * tl.load(masses + at)
            mixed += weight * tl.where(weight == 0.0, 0.0, each)  # with weight 0 no mixture has been stored
    mixed = mixed / tl.where(mass == 0.0, 1.0, mass)
    to = out + ((begin + token).to(tl.int64) * heads + head) * VALUE_DIM + d
    tl.store(to, mixed.to(out.dtype.element_ty), mask=d < VALUE_DIM)


@triton.jit(do_not_specialize=["selected_t", "selected_h", "table_stride", "sequences", "few", "window", "reach"])
def attend_tiles(
    query,
    query_t,
    query_h,
    keys,
    values,
    selected,
    selected_t,
    selected_h,
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
    CHUNKED: tl.constexpr,
    CAPPED: tl.constexpr,
    SELECTED: tl.constexpr,
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
    """Compute one tile of a sequence of more than `few` tokens.

    The tiles of sequence i begin at query_start[i] // TOKENS + i. So the host can bound their number without reading
    query_start. CHUNKED: the result has the bits of attend_chunks and join, given a tile of as many rows."""
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
    before = tl.load(kv_len + low) - count
    token, mine, inside, q, oldest, newest = tile_of(
        query, query_t, query_h, begin, count, tile, head, before, window, reach, GROUP, DIM, ROWS, DIM_PAD, BLOCK
    )
    bits = bits_of(selected, selected_t, selected_h, begin, count, token, head)
    sink = tl.full((ROWS,), float("-inf"), tl.float32)
    if SINKS:
        sink = tl.load(sinks + mine, mask=inside, other=0.0) * LOG2E
    if CHUNKED:
        top, mass, mixed = over_chunks(
            q,
            before + token,
            oldest,
            newest,
            sink,
            tables + low.to(tl.int64) * table_stride,
            keys,
            values,
            bits,
            head,
            scale,
            window,
            reach,
            softcap,
            CAPPED,
            SELECTED,
            HEADS,
            SIZE,
            DIM,
            VALUE_DIM,
            ROWS,
            DIM_PAD,
            VALUE_PAD,
            BLOCK,
        )
    else:
        top, mass, mixed = over(
            q,
            before + token,
            oldest,
            newest + 1,
            tables + low.to(tl.int64) * table_stride,
            keys,
            values,
            bits,
            head,
            scale,
            window,
            reach,
            softcap,
            CAPPED,
            SELECTED,
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
            higher = tl.maximum(top, sink)
            mixed = mixed * tl.exp2(top - higher)[:, None]
            mass = mass * tl.exp2(top - higher) + tl.exp2(sink - higher)
    mixed = mixed / tl.where(mass == 0.0, 1.0, mass)[:, None]
    e = tl.arange(0, VALUE_PAD)
    to = out + ((begin + token).to(tl.int64) * (HEADS * GROUP) + mine)[:, None] * VALUE_DIM + e[None, :]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=inside[:, None] & (e < VALUE_DIM)[None, :])
