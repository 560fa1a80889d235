"""Paged attention in Triton. It has two ways. The kernels choose between them by sequence, since the host does not know
the contents of query_start.

- Sequences of up to SHORT tokens in the step (decodes, drafts) are split over chunks of the positions (flash-decoding).
  The chunks are the same whatever the batch: 16 of 256 positions, 16 of 512, and so on. So short contexts are split
  finely and long ones leave few partial results. `join` adds the chunks' partial softmaxes in their order. A token's
  result depends neither on the other sequences, nor on the number of programs, nor on whether it was a draft.
- Sequences of more tokens (prefills) have one program per tile of rows (tokens × the query heads of one KV head), which
  reads all positions. If the result must be batch-invariant, the program uses the same chunks, in tiles as small as
  those of decodes. A token's bits are then the same however its prompt is cut.

Both ways are launched wherever both may be needed. A program whose sequence uses the other way returns at once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton

from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.cache import KVCache, check_attention
from tailrace.kernels.gpu.attention_kernels import attend_chunks, attend_tiles, join
from tailrace.kernels.gpu.online_softmax import MOST, start_of
from tailrace.kernels.gpu.store_kernel import store_rows

SHORT = 8  # Most tokens of a short sequence.
FEW_ROWS = 16  # Rows in a tile of a short sequence: the fewest that tensor cores accept.
ROW_BYTES = 128  # Rows of a tile · bytes of an entry. With more than 64 rows, 32 in fp32, registers spill.
PROGRAMS = 1024  # Enough to fill a GPU.


def make_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> KVCache:
    keys, values = (torch.empty((num_blocks, heads, block_size, dim), dtype=dtype, device=device) for dim in dims)
    return KVCache(keys, values, heads, block_size, *dims)


def rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [T, H, D] with the entries of a head side by side. Tokens and heads may be strided."""
    return x if x.stride(2) == 1 else x.contiguous()


def head_stride(selected: torch.Tensor) -> int:
    """Return the words between the selections of two heads; 0 if all heads share one."""
    return 0 if selected.shape[1] == 1 else selected.shape[2]


def padded(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


def block_of(dim: int, itemsize: int) -> int:
    """Return the number of positions whose keys take 16 KiB. With their values, several such blocks fit into the shared
    memory of any GPU.
    """
    return min(64, max(16, 2**14 // (padded(dim) * itemsize)))


@cache
def chunks_of(positions: int) -> int:
    """Return the number of chunks that this many positions touch. ValueError: there are too many."""
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
    check_attention(query, cache, block_tables, query_start, kv_len)
    tokens, heads, dim = query.shape
    sequences = kv_len.shape[0]
    if tokens < sequences:
        raise ValueError(f"every sequence has a token; got {tokens} tokens of {sequences} sequences")
    sinks = options.check_sinks(heads, query.device)
    selected = options.check_selected(tokens, cache.heads, query.device)
    out = torch.empty((tokens, heads, cache.value_dim), dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out
    query, tables = rows(query), block_tables if block_tables.stride(1) == 1 else block_tables.contiguous()
    query_start, kv_len = query_start.contiguous(), kv_len.contiguous()
    group, longest = heads // cache.heads, tokens - sequences + 1
    strides = query.stride(0), query.stride(1)
    bits = (query, 0, 0) if selected is None else (selected, selected.stride(0), head_stride(selected))
    where = (query, *strides, cache.keys, cache.values, *bits, tables, tables.stride(0), query_start, kv_len)
    numbers = (options.scale, options.window or 2**30, options.chunk or 2**30, options.softcap)
    shape = (options.softcap != 0.0, selected is not None, group, cache.heads, cache.block_size, dim, cache.value_dim)
    tile = (padded(dim), padded(cache.value_dim), block_of(dim, query.element_size()))
    with torch.cuda.device_of(query):
        if sequences > 1 or tokens <= SHORT:
            attend_short(where, (*numbers, *shape), sinks, out, min(SHORT, longest), tile)
        if longest > SHORT:
            attend_long(where, (*numbers, *shape), sinks, out, options.batch_invariant, tile)
    return out


def attend_long(
    where: tuple[Any, ...],
    how: tuple[Any, ...],
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    batch_invariant: bool,
    tile: tuple[int, int, int],
) -> None:
    """Launch the kernel for sequences of more than SHORT tokens. where, how, tile: arguments of attend_tiles."""
    query, kv_len = where[0], where[-1]
    group, kv_heads = how[6:8]
    least = FEW_ROWS if batch_invariant else ROW_BYTES // query.element_size()
    rows = max(least, triton.next_power_of_2(group))
    grid = (out.shape[0] // (rows // group) + kv_len.shape[0], kv_heads)
    read = query if sinks is None else sinks  # not read without sinks
    chunked = (sinks is not None, batch_invariant)
    attend_tiles[grid](*where, read, out, kv_len.shape[0], SHORT, *how[:4], *chunked, *how[4:], rows, *tile)


def attend_short(
    where: tuple[Any, ...],
    how: tuple[Any, ...],
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    most: int,
    tile: tuple[int, int, int],
) -> None:
    """Launch the kernels for sequences of at most `most` tokens. where, how, tile: arguments of attend_chunks."""
    tokens, heads, value_dim = out.shape
    tables, query_start, kv_len = where[8], *where[-2:]
    sequences, (group, kv_heads, size) = kv_len.shape[0], how[6:9]
    chunks = chunks_of(tables.shape[1] * size)
    few = max(FEW_ROWS, triton.next_power_of_2(group))
    tiles = triton.cdiv(most, few // group)
    places, place_stride = (tokens, 0) if tokens <= sequences * most else (sequences * most, most)
    partials = places * heads * chunks
    mixtures = torch.empty(partials * value_dim, dtype=torch.float32, device=out.device)
    # Rows are made up to whole 16 bytes: Triton compiles kernels anew for less aligned addresses.
    tops, masses = torch.empty((2, -(-partials // 4) * 4), dtype=torch.float32, device=out.device)
    parts = max(1, min(chunks, PROGRAMS // (sequences * tiles * kv_heads)))
    attend_chunks[(sequences * tiles, kv_heads, parts)](
        *where, tops, masses, mixtures, tiles, most, place_stride, chunks, *how, few, *tile
    )
    partial = (tops, masses, mixtures, where[0] if sinks is None else sinks)  # not read without sinks
    join[(sequences * most, heads)](
        query_start, kv_len, *partial, out, most, place_stride, chunks, sinks is not None, value_dim, tile[1]
    )
