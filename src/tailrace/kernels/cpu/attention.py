"""Paged attention by csrc/attention.cpp, which says how its caches are laid out."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cache import KVCache, check_attention
from tailrace.kernels.types import CODES


def make_cache(
    num_blocks: int, heads: int, block_size: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    if block_size % 16:
        raise ValueError(f"block_size must be a multiple of 16, got {block_size}")
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, got {head_dim}")
    pair = 2 if dtype == torch.bfloat16 else 1
    return KVCache(
        torch.empty((num_blocks, heads, head_dim // pair, block_size, pair), dtype=dtype),  # touched when used
        torch.empty((num_blocks, heads, block_size // pair, head_dim, pair), dtype=dtype),
        heads,
        block_size,
        head_dim,
    )


def rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] with the heads of a token side by side; the tokens may be strided."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def integers(x: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    """Raise ValueError unless x is contiguous and of this dtype: the kernels read it by address."""
    if x.dtype != dtype or not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous {dtype}, got {x.dtype} with strides {x.stride()}")


def store_kv(cache: KVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    shape = (slots.shape[0], cache.heads, cache.head_dim)
    if key.shape != shape or value.shape != shape or key.dtype != cache.dtype or value.dtype != cache.dtype:
        raise ValueError(
            f"key and value must be {shape} of {cache.dtype}, got {key.dtype} {tuple(key.shape)} and {value.dtype} "
            f"{tuple(value.shape)}"
        )
    integers(slots, torch.int64, "slots")
    key, value = rows(key), rows(value)
    _cpu.store_kv(
        key.data_ptr(),
        value.data_ptr(),
        CODES[cache.dtype],
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        slots.data_ptr(),
        shape[0],
        cache.heads,
        cache.head_dim,
        cache.block_size,
        cache.keys.shape[0],
        key.stride(0),
        value.stride(0),
    )


def paged_attention(
    query: torch.Tensor,
    cache: KVCache,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    """(More than six parameters: the operation's, see kernels.paged_attention.)"""
    check_attention(query, cache, block_tables, query_start, kv_len, window)
    tokens, heads, dim = query.shape
    for name, part in (("block_tables", block_tables), ("query_start", query_start), ("kv_len", kv_len)):
        integers(part, torch.int32, name)
    query = rows(query)
    out = torch.empty((tokens, heads, dim), dtype=query.dtype)
    _cpu.attention(
        query.data_ptr(),
        out.data_ptr(),
        CODES[query.dtype],
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        block_tables.data_ptr(),
        query_start.data_ptr(),
        kv_len.data_ptr(),
        tokens,
        cache.keys.shape[0],
        block_tables.shape[0],
        block_tables.shape[1],
        heads,
        cache.heads,
        dim,
        cache.block_size,
        query.stride(0),
        scale,
        softcap,
        window,
    )
    return out
