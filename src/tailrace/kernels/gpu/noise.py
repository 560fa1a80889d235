"""kernels/reference/noise.py in Triton: the same bits. Logarithms are taken in double and rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

GROUP = tl.constexpr(16)  # ids that share their hot bits
HOT = tl.constexpr(2.0**-8)  # the share of ids that are hot
UNIT = tl.constexpr(2.0**-32)
TINY = tl.constexpr(2.0**-53)
BLOCK = 1024
UNFUSED = {"enable_fp_fusion": False}  # each operation is rounded on its own, as on the CPU


@triton.jit
def philox_words(key, c0, stream, position):
    """Return four uint32 words. key, position: int64. c0, stream: broadcast to the shape of c0."""
    where = position.to(tl.uint64)
    one = tl.full(c0.shape, 1, tl.uint32) if c0.type.is_block() else tl.full((), 1, tl.uint32)
    low, high = where.to(tl.uint32), (where >> 32).to(tl.uint32)
    bits = key.to(tl.uint64)
    return tl.philox_impl(
        c0.to(tl.uint32),
        (one * stream).to(tl.uint32),
        one * low,
        one * high,
        bits.to(tl.uint32),
        (bits >> 32).to(tl.uint32),
        10,
    )


@triton.jit
def hot_bits(key, position, stream, group):
    """Return uint32 words: bit i is set if id 16 · group + i is hot."""
    w0, w1, w2, w3 = philox_words(key, group, stream * 2 + 1, position)
    both = w0 & w1 & w2 & w3
    return both & (both >> 16)


@triton.jit
def gumbel_of(key, position, stream, ids, hot):
    """Return standard Gumbel noise, float32, for ids whose hot bit is known."""
    w0, _, _, _ = philox_words(key, ids, stream * 2, position)
    v = (w0.to(tl.float64) + 0.5) * UNIT
    # e = −ln(1 − u). If v · HOT is small, 1 − v · HOT would lose its small part, so small_log uses the series of ln(1 −
    # x).
    e = tl.where(hot, small_log(v * HOT), -tl.log((1.0 - v) * (1.0 - HOT)))
    return (-tl.log(e)).to(tl.float32)


@triton.jit
def gumbel_at(key, position, stream, ids):
    """Return standard Gumbel noise, float32, for uint32 ids."""
    hot = (hot_bits(key, position, stream, ids // GROUP) >> (ids % GROUP)) & 1
    return gumbel_of(key, position, stream, ids, hot == 1)


@triton.jit
def small_log(x):
    """Return −ln(1 − x) for 0 < x < 2^-8, in double: the series up to x^8 / 8. The terms left out are less than 2^-67
    of the result."""
    p = 1.0 / 7 + x * (1.0 / 8)
    p = 1.0 / 6 + x * p
    p = 1.0 / 5 + x * p
    p = 1.0 / 4 + x * p
    p = 1.0 / 3 + x * p
    p = 0.5 + x * p
    return x * (1.0 + x * p)


@triton.jit
def uniform_of(key, position, stream):
    """Return one number in (0, 1), float64, of 53 bits."""
    w0, w1, _, _ = philox_words(key, tl.full((), 0, tl.uint32), stream * 2, position)
    bits = (w0.to(tl.uint64) << 21) | (w1 >> 11).to(tl.uint64)
    return (bits.to(tl.float64) + 0.5) * TINY


@triton.jit(do_not_specialize=["key", "position", "stream"])
def gumbel_kernel(key, position, stream, ids_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ids = tl.load(ids_ptr + at, mask=at < n, other=0).to(tl.uint32)
    tl.store(out_ptr + at, gumbel_at(key, position, stream, ids), mask=at < n)


@triton.jit(do_not_specialize=["key", "position", "stream"])
def words_kernel(key, position, stream, ids_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ids = tl.load(ids_ptr + at, mask=at < n, other=0)
    w0, _, _, _ = philox_words(key, ids, stream * 2, position)
    tl.store(out_ptr + at, w0.to(tl.int64), mask=at < n)


@triton.jit
def philox_kernel(key_ptr, counter_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    key = tl.load(key_ptr + at, mask=inside, other=0).to(tl.uint64)
    c0 = tl.load(counter_ptr + at, mask=inside, other=0).to(tl.uint32)
    c1 = tl.load(counter_ptr + n + at, mask=inside, other=0).to(tl.uint32)
    c2 = tl.load(counter_ptr + 2 * n + at, mask=inside, other=0).to(tl.uint32)
    c3 = tl.load(counter_ptr + 3 * n + at, mask=inside, other=0).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(c0, c1, c2, c3, key.to(tl.uint32), (key >> 32).to(tl.uint32), 10)
    tl.store(out_ptr + at, w0.to(tl.int64), mask=inside)
    tl.store(out_ptr + n + at, w1.to(tl.int64), mask=inside)
    tl.store(out_ptr + 2 * n + at, w2.to(tl.int64), mask=inside)
    tl.store(out_ptr + 3 * n + at, w3.to(tl.int64), mask=inside)


def gumbel(key: int, position: int, token_ids: torch.Tensor, stream: int) -> torch.Tensor:
    out = torch.empty(token_ids.shape, dtype=torch.float32, device=token_ids.device)
    if n := token_ids.numel():
        with torch.cuda.device_of(token_ids):
            gumbel_kernel[(triton.cdiv(n, BLOCK),)](
                key, position, stream, token_ids.contiguous(), out, n, BLOCK, **UNFUSED
            )
    return out


def words(key: int, position: int, stream: int, token_ids: torch.Tensor) -> torch.Tensor:
    out = torch.empty(token_ids.shape, dtype=torch.int64, device=token_ids.device)
    if n := token_ids.numel():
        with torch.cuda.device_of(token_ids):
            words_kernel[(triton.cdiv(n, BLOCK),)](
                key, position, stream, token_ids.contiguous(), out, n, BLOCK, **UNFUSED
            )
    return out


def philox(key: torch.Tensor, counter: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    key, *counters = (part.contiguous() for part in torch.broadcast_tensors(key, *counter))
    out = torch.empty((4, *key.shape), dtype=torch.int64, device=key.device)
    if n := key.numel():
        with torch.cuda.device_of(key):
            philox_kernel[(triton.cdiv(n, BLOCK),)](key, torch.stack(counters), out, n, BLOCK)
    return tuple(out)
