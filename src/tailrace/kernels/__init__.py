"""The arithmetic: tensors in, tensors out. One public function per operation; its docstring is the contract of every
backend. `reference/` is the specification in obvious torch, `cpu/` calls the C++ kernels of csrc/.

Knows nothing of requests, models or text. Symbols: R rows, V vocabulary, T tokens, N sequences, M rows of a matrix
product, Hq and Hkv query and KV heads, D head dimension.

Invariance, where a contract says "row-invariant": the result for a row (token) is the same bits whatever the other rows
are, however many there are, and however many threads run. (More than 300 lines: the contracts of all operations.)
"""

from __future__ import annotations

from typing import Any

import torch

from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.cache import KVCache
from tailrace.kernels.dispatch import choose

__all__ = [
    "AttentionOptions",
    "KVCache",
    "add_rms_norm",
    "argmax",
    "bmm",
    "grouped_linear",
    "gumbel",
    "joined",
    "linear",
    "make_cache",
    "make_quantized_cache",
    "pack_linear",
    "pack_quantized",
    "paged_attention",
    "philox",
    "quantized_rows",
    "rms_norm",
    "rotary",
    "sample_head",
    "set_num_threads",
    "silu_mul",
    "store_kv",
    "sum_rows",
    "uniform",
    "words",
]


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest entry of each row; of equal ones (−0 equals +0) the smallest id. Row-invariant, exact.

    Args:
        logits: [R, V], bf16, f16 or f32, rows may be strided, entries of a row contiguous. Not modified.

    Returns:
        ids int64 [R], −1 where status is not OK; status int32 [R], see kernels/status.py. NaN beats +inf beats all
        −inf.
    """
    return choose("argmax", logits.device.type, torch.float32)(logits)


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Weights [N, K] (bf16 or f32, on a GPU f16 too; bias [N]) in the order `linear` streams them; the original may be
    freed."""
    return choose("pack_linear", weight.device.type, weight.dtype)(weight, bias)


def pack_quantized(raw: torch.Tensor, ggml_type: int, k: int, bias: torch.Tensor | None = None) -> Any:
    """Weights [N, K] in the blocks of a GGUF file, in the order `linear` streams them; the original may be freed.

    Args:
        raw: the file's bytes, uint8 [N, bytes of a row]. ggml_type: GGUF's number of the blocks' type: Q8_0, Q4_0,
            Q4_1, Q5_0, Q5_1, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS or MXFP4.
        k: inputs. bias: [N], in the dtype of x.

    Raises:
        ValueError: there is no kernel for the type, a shape does not fit, or a scale is not finite.
    """
    return choose("pack_quantized", raw.device.type, torch.bfloat16)(raw, ggml_type, k, bias)


def joined(parts: list[Any]) -> list[Any]:
    """Packed quantised weights whose outputs stand side by side, as fewer of them where their type is the same."""
    return choose("joined", "cpu", torch.bfloat16)(parts)


def quantized_rows(packed: Any, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows `ids` [...] of packed quantised weights, widened → [..., K]: the float32 of gguf.dequantize, rounded once.

    Raises:
        ValueError: an id is not in [0, N), or dtype is not bf16 or f32.
    """
    return choose("quantized_rows", ids.device.type, torch.bfloat16)(packed, ids, dtype)


def linear(x: torch.Tensor, packed: Any) -> torch.Tensor:
    """x Wᵀ + b for x [..., K] → [..., N] in x's dtype; fp32 accumulation, rounded once. Row-invariant.

    With quantised weights, x is rounded first: per row and 32 inputs to integers of at most 127 (docs/quantized.md).
    """
    return choose("linear", x.device.type, x.dtype)(x, packed)


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products of pairs: a [B, M, K] · b [B, K, N] → [B, M, N]; fp32 accumulation, rounded once. Row-invariant on a
    GPU: in M and in B.

    Raises:
        ValueError: on a GPU, dtypes differ or are none of bf16, f16 and f32; shapes do not fit.
    """
    return choose("bmm", a.device.type, a.dtype)(a, b)


def grouped_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, starts: torch.Tensor
) -> torch.Tensor:
    """A linear layer per group of rows, such as an expert's; fp32 accumulation, rounded once. Row-invariant on a GPU,
    where the host does not wait for `starts`.

    Args:
        x: [S, K], sorted by group. weight: [E, N, K], bias: [E, N] or None, of the same dtype.
        starts: int64 [E + 1], ascending: group g has the rows starts[g] … starts[g + 1] − 1.

    Returns:
        [S, N]; 0 in rows of no group.

    Raises:
        ValueError: on a GPU, dtypes differ or are none of bf16, f16 and f32; shapes do not fit.
    """
    return choose("grouped_linear", x.device.type, x.dtype)(x, weight, bias, starts)


def sum_rows(x: torch.Tensor, divisor: float = 1.0, squared: bool = False) -> torch.Tensor:
    """Σ x / divisor over the last dimension, or Σ x² / divisor: [..., dim] → [...] in x's dtype (a float's), fp32
    inside. Row-invariant on a GPU."""
    return choose("sum_rows", x.device.type, x.dtype)(x, divisor, squared)


def make_cache(
    num_blocks: int,
    heads: int,
    block_size: int,
    head_dim: int | tuple[int, int],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KVCache:
    """One layer's KV cache, contents undefined. block_size must be a multiple of 16; the layout is the backend's own
    business. head_dim: of keys and of values, where they differ."""
    device = torch.device(device)
    dims = (head_dim, head_dim) if isinstance(head_dim, int) else head_dim
    return choose("make_cache", device.type, dtype)(num_blocks, heads, block_size, dims, dtype, device)


def make_quantized_cache(
    num_blocks: int,
    heads: int,
    block_size: int,
    head_dim: int | tuple[int, int],
    dtype: torch.dtype,
    code: torch.dtype,
) -> KVCache:
    """The same, on the CPU, of keys and values in eight bits: `store_kv` makes codes of a token's head by itself and
    keeps their scale, the largest magnitude over the largest code; `paged_attention` reads codes times scale.

    dtype: of the keys and values that are given, and of queries: bf16 or f32. code: torch.int8, of −127 … 127: an error
    of at most half a scale and the rounding of 2⁻²²; or torch.float8_e4m3fn, up to 448: at most 1/16 of the number, or
    2⁻¹⁰ of the scale (arXiv 2209.05433). Numbers all below 2⁻¹⁰⁰ become zeros. NaN or infinity make the token's scale
    NaN, and so the attention of whoever sees the token.

    Raises:
        ValueError: code is another one; or as in `make_cache`.
    """
    if code not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"codes of a KV cache must be torch.int8 or torch.float8_e4m3fn, got {code}")
    dims = (head_dim, head_dim) if isinstance(head_dim, int) else head_dim
    return choose("make_quantized_cache", "cpu", dtype)(num_blocks, heads, block_size, dims, dtype, code)


def store_kv(cache: KVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Write keys [T, Hkv, D] and values [T, Hkv, Dv] where slots int64 [T] (block · block_size + offset) say; nothing
    else changes.

    On a GPU a token whose slot lies outside the cache is skipped: −1 stands for padding.

    Raises:
        ValueError: on the CPU, a slot lies outside the cache; shapes or dtypes do not fit.
    """
    choose("store_kv", key.device.type, cache.dtype)(cache, key, value, slots)


def paged_attention(
    query: torch.Tensor,
    cache: KVCache,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    chunk: int = 0,
    sinks: torch.Tensor | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Causal attention of a flat bag of query tokens over the paged cache; decodes and prefill chunks in one call.
    (More than six parameters: five tensors, and what models differ in.)

    The tokens of sequence i are query_start[i] … query_start[i + 1] − 1 and are the last of its kv_len[i] positions;
    their keys and values are in the cache already. Query head h reads KV head h // (Hq / Hkv). fp32 accumulation. On a
    GPU every sequence has a token at least, and one with kv_len 0, which is padding, gets zeros.

    Args:
        query: [T, Hq, D]. cache: of one layer. block_tables: int32 [N, B]. query_start: int32 [N + 1]. kv_len: int32
            [N].
        scale: multiplies the scores. window: each token sees so many positions, itself included; 0 is all.
        softcap: scores become softcap · tanh(score / softcap); 0 is off.
        chunk: a token at position p sees the positions from p − p mod chunk on (Llama 4); 0 is all.
        sinks: float32 [Hq]: a score per head that has a share of the softmax and no value (gpt-oss, arXiv 2309.17453).
        batch_invariant: on a GPU, as on the CPU; slower for more than 8 tokens a sequence.

    Returns:
        [T, Hq, Dv] in query's dtype. Row-invariant on the CPU, also under any chunking of a prefill; on a GPU if asked,
        and otherwise for up to 8 tokens a sequence.

    Raises:
        ValueError: on the CPU, a table names a block outside the cache, kv_len does not fit its table, query_start does
            not run from 0 to T; or shapes and dtypes do not fit.
    """
    options = AttentionOptions(scale, window, softcap, chunk, sinks, batch_invariant)
    return choose("paged_attention", query.device.type, query.dtype)(
        query, cache, block_tables, query_start, kv_len, options
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension; fp32 inside. The normalised x is rounded before the
    product, as in Llama; `plus_one` multiplies by 1 + weight in fp32 and rounds once, as in Gemma (arXiv 1910.07467).
    Row-invariant."""
    return choose("rms_norm", x.device.type, x.dtype)(x, weight, eps, plus_one)


def add_rms_norm(residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += delta in place, both contiguous [..., dim]; returns rms_norm(residual, weight, eps)."""
    return choose("add_rms_norm", residual.device.type, residual.dtype)(residual, delta, weight, eps)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotary position embedding in place: x [T, H, D] (tokens may be strided), cos and sin [T, rotary ≤ D] in x's
    dtype, the "rotate half" convention (arXiv 2104.09864). Row-invariant."""
    choose("rotary", x.device.type, x.dtype)(x, cos, sin)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up for [..., 2·dim] holding gate then up → [..., dim]. Row-invariant."""
    return choose("silu_mul", gate_up.device.type, gate_up.dtype)(gate_up)


def philox(key: torch.Tensor, counter: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Philox4x32-10 (Salmon et al., SC 2011). key: int64, 64 bits; counter: four int64 of 32 bits each; all broadcast.
    Returns four int64 tensors of 32 random bits each. Exact, the same bits on every backend."""
    return choose("philox", key.device.type, torch.int64)(key, counter)


def gumbel(key: int, position: int, token_ids: torch.Tensor, stream: int) -> torch.Tensor:
    """Standard Gumbel noise of one row, float32 [n], a function of (key, position, token id, stream) alone.

    At least 32 random bits each, 40 where the noise is large, so that a token of probability 1e-10 still wins as
    often as it should; finite: −3.2 … 28.5. Backends share the bits; their logarithms may differ in the last place.
    kernels/reference/noise.py says how a bound of the noise is known before the noise.

    Args:
        key: 64-bit seed. position: 0 … 2^63 − 1. token_ids: int64 [n], 0 … 2^32 − 1. stream: 0 … 2^32 − 1; independent
            noise.
    """
    return choose("gumbel", token_ids.device.type, torch.int64)(key, position, token_ids, stream)


def words(key: int, position: int, stream: int, token_ids: torch.Tensor) -> torch.Tensor:
    """32 random bits per token id, int64 [n], a function of (key, position, stream, token id) alone; the same on every
    backend."""
    return choose("words", token_ids.device.type, torch.int64)(key, position, stream, token_ids)


def uniform(key: int, position: int, stream: int) -> float:
    """One number of 53 bits in (0, 1), a function of (key, position, stream) alone; the same on every backend."""
    return choose("uniform", "cpu", torch.int64)(key, position, stream)


def sample_head(
    hidden: torch.Tensor, weight: torch.Tensor, key: torch.Tensor, position: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output projection and draw in one, for rows with nothing but a temperature: on a GPU logits are never written to
    memory.

    The token is the argmax of l / T + Gumbel noise in double, the same noise as everywhere; with T = 0 the likeliest;
    of equal ones the smaller id. l is rounded to the dtype of `hidden`, as logits are. Exact Gumbel-max (Maddison et
    al., arXiv 1411.0030) over tiles, as FlashSampling (arXiv 2603.15854) has it; against drawing from written logits
    only ties within their rounding may differ.

    Args:
        hidden: [R, H], normed; weight: [V, H], of the same dtype (bf16, f16, f32), entries of a row contiguous.
        key, position: int64 [R]. temperature: float64 [R], at least 0; not checked.

    Returns:
        As `argmax`.
    """
    return choose("sample_head", hidden.device.type, hidden.dtype)(hidden, weight, key, position, temperature)


def set_num_threads(threads: int) -> None:
    """Threads of the C++ kernels, the calling one included."""
    from tailrace.kernels import cpu

    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    cpu.set_num_threads(threads)
