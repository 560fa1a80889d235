"""Paged attention, in torch: gather each sequence's keys and values, then plain masked softmax in fp32."""

from __future__ import annotations

import torch

from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.cache import KVCache


def make_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> KVCache:
    keys, values = (torch.zeros((num_blocks, heads, block_size, dim), dtype=dtype, device=device) for dim in dims)
    return KVCache(keys, values, heads, block_size, *dims)


def store_kv(cache: KVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    slots = slots.to(key.device)
    block, offset = slots // cache.block_size, slots % cache.block_size
    cache.keys[block, :, offset] = key.to(cache.dtype)
    cache.values[block, :, offset] = value.to(cache.dtype)


def paged_attention(
    query: torch.Tensor,
    cache: KVCache,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    out = query.new_empty((*query.shape[:2], cache.value_dim))
    sinks = options.check_sinks(query.shape[1], query.device)
    starts, lengths = query_start.tolist(), kv_len.tolist()
    for i, length in enumerate(lengths):
        first, last = starts[i], starts[i + 1]
        blocks = block_tables[i, : -(-length // cache.block_size)].to(query.device, torch.int64)
        keys = cache.keys[blocks].transpose(1, 2).flatten(0, 1)[:length]  # [positions, Hkv, D]
        values = cache.values[blocks].transpose(1, 2).flatten(0, 1)[:length]
        group = query.shape[1] // cache.heads
        keys = keys.repeat_interleave(group, 1).float()
        values = values.repeat_interleave(group, 1).float()
        scores = torch.einsum("qhd,khd->hqk", query[first:last].float(), keys) * options.scale
        if options.softcap:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        at = torch.arange(length - (last - first), length, device=query.device)[:, None]
        position = torch.arange(length, device=query.device)[None, :]
        hidden = position > at
        if options.window:
            hidden |= position <= at - options.window
        if options.chunk:
            hidden |= position < at // options.chunk * options.chunk
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
        weights = scores.softmax(-1)[..., :length]
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return out
