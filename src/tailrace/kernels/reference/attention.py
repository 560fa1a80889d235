"""Paged attention, in torch: gather each sequence's keys and values, then plain masked softmax in fp32."""

from __future__ import annotations

import torch

from tailrace.kernels.cache import KVCache


def make_cache(
    num_blocks: int, heads: int, block_size: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    shape = (num_blocks, heads, block_size, head_dim)
    return KVCache(
        torch.zeros(shape, dtype=dtype, device=device),
        torch.zeros(shape, dtype=dtype, device=device),
        heads,
        block_size,
        head_dim,
    )


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
    scale: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    """(More than six parameters: the operation's, see kernels.paged_attention.)"""
    out = torch.empty_like(query)
    starts, lengths = query_start.tolist(), kv_len.tolist()
    for i, length in enumerate(lengths):
        first, last = starts[i], starts[i + 1]
        blocks = block_tables[i, : -(-length // cache.block_size)].to(query.device, torch.int64)
        keys = cache.keys[blocks].transpose(1, 2).flatten(0, 1)[:length]  # [positions, Hkv, D]
        values = cache.values[blocks].transpose(1, 2).flatten(0, 1)[:length]
        group = query.shape[1] // cache.heads
        keys = keys.repeat_interleave(group, 1).float()
        values = values.repeat_interleave(group, 1).float()
        scores = torch.einsum("qhd,khd->hqk", query[first:last].float(), keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        at = torch.arange(length - (last - first), length, device=query.device)[:, None]
        position = torch.arange(length, device=query.device)[None, :]
        hidden = position > at
        if window:
            hidden |= position <= at - window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return out
