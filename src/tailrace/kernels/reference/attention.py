"""Paged attention, in torch: gather each sequence's keys and values, then plain masked softmax in fp32."""

from __future__ import annotations

import torch

from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.bits import unpack_bits
from tailrace.kernels.cache import KVCache

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # codes


def make_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> KVCache:
    keys, values = (torch.zeros((num_blocks, heads, block_size, dim), dtype=dtype, device=device) for dim in dims)
    return KVCache(keys, values, heads, block_size, *dims)


def make_quantized_cache(
    num_blocks: int, heads: int, block_size: int, dims: tuple[int, int], dtype: torch.dtype, code: torch.dtype
) -> KVCache:
    keys, values = (torch.zeros((num_blocks, heads, block_size, dim), dtype=code) for dim in dims)
    return KVCache(keys, values, heads, block_size, *dims, torch.zeros((2, num_blocks, heads, block_size)), dtype)


def store_kv(cache: KVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    slots = slots.to(key.device)
    block, offset = slots // cache.block_size, slots % cache.block_size
    for i, (kept, numbers) in enumerate(((cache.keys, key), (cache.values, value))):
        if cache.scales is None:
            kept[block, :, offset] = numbers.to(cache.dtype)
        else:
            codes, cache.scales[i, block, :, offset] = encode(numbers.float(), kept.dtype)
            kept.view(torch.uint8)[block, :, offset] = codes.view(torch.uint8)  # torch can't index float8


def encode(numbers: torch.Tensor, code: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode numbers float32 [T, H, D]. Return codes [T, H, D] and their scales float32 [T, H].

    The scale is the largest magnitude over the largest code. Numbers that are all below 2⁻¹⁰⁰ become zeros; the scale
    of NaN or infinity is NaN.
    """
    top = numbers.abs().amax(-1)
    most = torch.full_like(top, LARGEST[code])  # a float over a tensor is rounded twice
    whole, tiny = numbers.isfinite().all(-1), top < 2.0**-100
    scaled = numbers * torch.where(whole & ~tiny, most / top, 0.0)[..., None]
    scaled = scaled.where((whole & ~tiny)[..., None], 0.0)
    codes = scaled.round().to(code) if code == torch.int8 else scaled.to(code)
    return codes, torch.where(whole, torch.where(tiny, 0.0, top / most), float("nan"))


def numbers_of(cache: KVCache, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of these blocks, each [positions, Hkv, D]: codes times their scales."""
    out = []
    for i, kept in enumerate((cache.keys, cache.values)):
        if cache.scales is None:
            part = kept[blocks]
        else:
            part = kept.view(torch.uint8)[blocks].view(kept.dtype).float() * cache.scales[i, blocks][..., None]
        out.append(part.transpose(1, 2).flatten(0, 1))
    return out[0], out[1]


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
    selected = options.check_selected(query.shape[0], cache.heads, query.device)
    starts, lengths = query_start.tolist(), kv_len.tolist()
    for i, length in enumerate(lengths):
        first, last = starts[i], starts[i + 1]
        blocks = block_tables[i, : -(-length // cache.block_size)].to(query.device, torch.int64)
        keys, values = (part[:length] for part in numbers_of(cache, blocks))
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
        if selected is not None:
            seen = unpack_bits(selected[first:last])[..., :length].transpose(0, 1)  # [1 or Hkv, q, k]
            scores = scores.masked_fill(~seen.repeat_interleave(query.shape[1] // seen.shape[0], 0), float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
        weights = scores.softmax(-1)[..., :length]
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return out
