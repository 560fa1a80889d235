"""Paged attention in Triton: two ways, chosen by each sequence for itself, since the host does not know what is in
query_start.

- Up to SHORT tokens in the step (decodes, drafts): split over chunks of the positions (flash-decoding). The chunks are
  the same whatever the batch: 16 of 256 positions, 16 of 512, and so on, so that short contexts are split finely and
  long ones leave few partial results. `join` adds the chunks' partial softmaxes in their order: a token's result
  depends neither on the other sequences, nor on how many programs there are, nor on whether it was a draft.
- More tokens (prefills): one program per tile of rows (tokens × the query heads of one KV head), which goes over all
  positions.

Both are launched wherever both may be needed; a program whose sequence goes the other way ends at once.
"""

from __future__ import annotations

from functools import cache

import torch
import triton

from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.cache import KVCache
from tailrace.kernels.gpu.attention_kernels import MOST, attend_chunks, attend_tiles, join, start_of, store_rows

SHORT = 8  # tokens of a sequence
FEW_ROWS = 16  # of a tile of a short sequence; the least that tensor cores take
ROW_BYTES = 128  # rows of a tile · bytes of an entry: 64 rows, in fp32 32, beyond which registers spill
PROGRAMS = 1024  # enough to fill a GPU


def make_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> KVCache:
    keys, values = (torch.empty((num_blocks, heads, block_size, dim), dtype=dtype, device=device) for dim in dims)
    return KVCache(keys, values, heads, block_size, *dims)


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
