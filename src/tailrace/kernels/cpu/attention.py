"""Paged attention by csrc/model/attention.cpp, which says how its caches are laid out."""

from __future__ import annotations

import math

import torch

from tailrace import _cpu
from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.cache import KVCache, check_attention
from tailrace.kernels.cpu.launch import launch
from tailrace.kernels.cpu.memory import lasting
from tailrace.kernels.plain import refuse_odd
from tailrace.kernels.types import CODES

KV_CODES = {torch.int8: 1, torch.float8_e4m3fn: 2}  # csrc/quantized/kv_codes.h


def make_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> KVCache:
    pair = 2 if dtype == torch.bfloat16 else 1
    keys, values = memory((num_blocks, heads, block_size), dims, (pair, pair), dtype)
    return KVCache(keys, values, heads, block_size, *dims)


def make_quantized_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, code: torch.dtype
) -> KVCache:
    shape = (num_blocks, heads, block_size)
    sides = (2, 2) if dtype == torch.bfloat16 else (1, 1)
    if code == torch.int8:  # csrc/quantized/kv_products.h
        sides = (2 if dims[0] % 4 else 4, 4)
    keys, values = memory(shape, dims, sides, code)
    return KVCache(keys, values, heads, block_size, *dims, torch.empty((2, *shape)), dtype)


def memory(
    shape: tuple[int, int, int], dims: tuple[int, int], sides: tuple[int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory for keys and values, in the kernel's order.

    shape: [blocks, heads, block_size]. sides: how many numbers of a key lie side by side, and how many positions'
    values.
    """
    num_blocks, heads, block_size = shape
    if block_size % 16:
        raise ValueError(f"block_size must be a multiple of 16, got {block_size}")
    head_dim, value_dim = dims
    if head_dim % 2 or value_dim % 2:
        raise ValueError(f"head_dim must be even, got {head_dim} of keys and {value_dim} of values")
    keys = (num_blocks, heads, block_size // 16, head_dim // sides[0], 16, sides[0])
    values = (num_blocks, heads, block_size // sides[1], value_dim, sides[1])
    # The system allocates memory when it is first written. With small pages that took a third of a step in which each
    # of 32 streams began a new block.
    return lasting(math.prod(keys), dtype).view(keys), lasting(math.prod(values), dtype).view(values)


def code_and_scales(cache: KVCache) -> tuple[int, int]:
    """Return the kernel's number of the codes and the scales' address; zeros without codes."""
    return (0, 0) if cache.scales is None else (KV_CODES[cache.keys.dtype], cache.scales.data_ptr())


def rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [T, H, D] with the heads of a token side by side. The tokens may be strided."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def integers(x: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    """Raise ValueError unless x is contiguous and has this dtype: the kernels read it by address."""
    if x.dtype != dtype or not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous {dtype}, got {x.dtype} with strides {x.stride()}")


def store_kv(cache: KVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    refuse_odd(key=key, value=value, slots=slots)
    shape = (slots.shape[0], cache.heads, cache.head_dim)
    wide = (*shape[:2], cache.value_dim)
    if key.shape != shape or value.shape != wide or key.dtype != cache.dtype or value.dtype != cache.dtype:
        raise ValueError(
            f"key and value must be {shape} and {wide} of {cache.dtype}, got {key.dtype} {tuple(key.shape)} and "
            f"{value.dtype} {tuple(value.shape)}"
        )
    integers(slots, torch.int64, "slots")
    key, value = rows(key), rows(value)
    launch(
        _cpu.store_kv,
        key.data_ptr(),
        value.data_ptr(),
        CODES[cache.dtype],
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        slots.data_ptr(),
        shape[0],
        cache.heads,
        cache.head_dim,
        cache.value_dim,
        cache.block_size,
        cache.keys.shape[0],
        key.stride(0),
        value.stride(0),
        *code_and_scales(cache),
    )


def paged_attention(
    query: torch.Tensor,
    cache: KVCache,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """(More than 40 lines: the C++ function's arguments.)"""
    refuse_odd(query=query, block_tables=block_tables, query_start=query_start, kv_len=kv_len)
    check_attention(query, cache, block_tables, query_start, kv_len)
    tokens, heads, dim = query.shape
    sinks = options.check_sinks(heads, query.device)
    selected = options.check_selected(tokens, cache.heads, query.device)
    refuse_odd(sinks=sinks, selected=selected)
    for name, part in (("block_tables", block_tables), ("query_start", query_start), ("kv_len", kv_len)):
        integers(part, torch.int32, name)
    query = rows(query)
    out = torch.empty((tokens, heads, cache.value_dim), dtype=query.dtype)
    launch(
        _cpu.attention,
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
        cache.value_dim,
        cache.block_size,
        query.stride(0),
        options.scale,
        options.softcap,
        options.window,
        options.chunk,
        0 if sinks is None else sinks.data_ptr(),
        *code_and_scales(cache),
        *((0, 0, 0) if selected is None else (selected.data_ptr(), *selected.shape[1:])),
    )
    return out
