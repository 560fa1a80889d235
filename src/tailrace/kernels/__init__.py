"""The arithmetic: tensors in, tensors out.

Each operation is one public function, whose docstring is the contract of every backend. `reference/` is the
specification in obvious torch, `cpu/` calls the C++ kernels of csrc/, `gpu/` holds the Triton kernels.

This folder knows nothing of requests, models or text. Symbols: R rows, V vocabulary, T tokens, N sequences, M rows of a
matrix product, Hq and Hkv query and KV heads, D head dimension.

"Row-invariant" in a contract means: the result for a row (token) has the same bits whatever the other rows are. It
depends neither on the number of rows nor on the number of threads.

(More than 300 lines: the contracts of all operations.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tailrace.kernels.attention_options import AttentionOptions
from tailrace.kernels.bits import pack_bits, unpack_bits
from tailrace.kernels.cache import KVCache
from tailrace.kernels.dispatch import choose
from tailrace.kernels.scans import ChannelScan, Convolution, HeadScan
from tailrace.kernels.walk import PlacedWalk, Walk

__all__ = [
    "AttentionOptions",
    "ChannelScan",
    "Convolution",
    "HeadScan",
    "KVCache",
    "PlacedWalk",
    "Walk",
    "add_rms_norm",
    "argmax",
    "bmm",
    "convolve",
    "group_packed",
    "grouped_linear",
    "gumbel",
    "joined",
    "linear",
    "make_cache",
    "make_quantized_cache",
    "pack_bits",
    "pack_grouped",
    "pack_linear",
    "pack_quantized",
    "paged_attention",
    "philox",
    "quantized_rows",
    "rms_norm",
    "rotary",
    "sample_head",
    "scan_channels",
    "scan_heads",
    "set_num_threads",
    "silu_mul",
    "store_kv",
    "sum_rows",
    "uniform",
    "unpack_bits",
    "words",
]


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the id of the largest entry of each row; of equal ones (−0 equals +0) the smallest id. Row-invariant,
    exact.

    Args:
        logits: [R, V], bf16, f16 or f32, rows may be strided, entries of a row contiguous. Not modified.

    Returns:
        ids int64 [R], −1 where status is not OK; status int32 [R], see kernels/status.py. NaN beats +inf beats all
        −inf.
    """
    return choose("argmax", logits.device.type, torch.float32)(logits)


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Return weights [N, K] in the order in which `linear` streams them. The original may be freed.

    Args:
        weight: bf16 or f32; on a GPU f16 too. bias: [N].
    """
    return choose("pack_linear", weight.device.type, weight.dtype)(weight, bias)


def pack_quantized(raw: torch.Tensor, ggml_type: int, k: int, bias: torch.Tensor | None = None) -> Any:
    """Return weights [N, K], given in the blocks of a GGUF file, in the order in which `linear` streams them.

    The original may be freed.

    Args:
        raw: the file's bytes, uint8 [N, bytes of a row].
        ggml_type: GGUF's number of the blocks' type. The kernels support Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q3_K, Q4_K,
            Q5_K, Q6_K, IQ4_NL, IQ4_XS and MXFP4.
        k: the number of inputs.
        bias: [N], in the dtype of x.

    Raises:
        ValueError: no kernel supports the type, a shape does not fit, or a scale is not finite.
    """
    return choose("pack_quantized", raw.device.type, torch.bfloat16)(raw, ggml_type, k, bias)


def joined(parts: list[Any]) -> list[Any]:
    """Return the same outputs as these packed quantized weights, side by side. Neighbours of one type may become
    one."""
    return choose("joined", "cpu", torch.bfloat16)(parts)


def quantized_rows(packed: Any, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return rows `ids` [...] of packed quantized weights as numbers [..., K]: gguf.dequantize's float32, rounded once.

    Raises:
        ValueError: an id is not in [0, N), or dtype is not bf16 or f32.
    """
    return choose("quantized_rows", ids.device.type, torch.bfloat16)(packed, ids, dtype)


def linear(x: torch.Tensor, packed: Any) -> torch.Tensor:
    """Return x Wᵀ + b for x [..., K]: [..., N] in x's dtype; fp32 accumulation, rounded once. Row-invariant.

    With quantized weights, x is rounded first: per row and 32 inputs to integers of at most 127 (docs/quantized.md).
    """
    return choose("linear", x.device.type, x.dtype)(x, packed)


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply pairs of matrices: a [B, M, K] · b [B, K, N] → [B, M, N]; fp32 accumulation, rounded once.

    On a GPU the result is row-invariant, in M and in B.

    Raises:
        ValueError: on a GPU, shapes do not fit, or dtypes differ or are none of bf16, f16 and f32.
    """
    return choose("bmm", a.device.type, a.dtype)(a, b)


def pack_grouped(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Return a linear layer per group in the order in which `grouped_linear` streams the weights. On a CPU the original
    may be freed.

    Args:
        weight: [groups, N, K], bf16 or f32; on a GPU f16 too. bias: [groups, N] in the same dtype.

    Raises:
        ValueError: shapes do not fit, or the dtype is another one.
    """
    return choose("pack_grouped", weight.device.type, weight.dtype)(weight, bias)


def group_packed(layers: Sequence[Any]) -> Any:
    """Return the same for results of `pack_linear` or `pack_quantized`, one per group; on the CPU.

    Raises:
        ValueError: the layers differ in shape or type.
    """
    return choose("group_packed", "cpu", torch.bfloat16)(layers)


def grouped_linear(x: torch.Tensor, packed: Any, starts: torch.Tensor) -> torch.Tensor:
    """Apply a linear layer per group of rows, such as an expert's; fp32 accumulation, rounded once.

    The result is row-invariant, and a row has the bits that `linear` gives it. The host reads nothing of `starts`: a
    GPU need not wait, and a step on a CPU can be recorded.

    Args:
        x: [S, K], sorted by group, in the layers' dtype.
        packed: the result of `pack_grouped` or `group_packed`.
        starts: int64 [groups + 1], ascending. Group g has the rows starts[g] … starts[g + 1] − 1.

    Returns:
        [S, N]; rows of no group are 0.

    Raises:
        ValueError: shapes or dtypes do not fit; on a CPU, `starts` does not ascend from 0 to at most S.
    """
    return choose("grouped_linear", x.device.type, x.dtype)(x, packed, starts)


def sum_rows(x: torch.Tensor, divisor: float = 1.0, squared: bool = False) -> torch.Tensor:
    """Return Σ x / divisor over the last dimension, or Σ x² / divisor: [..., dim] → [...] in x's floating dtype.

    Sums are taken in fp32. Row-invariant on a GPU.
    """
    return choose("sum_rows", x.device.type, x.dtype)(x, divisor, squared)


def make_cache(
    num_blocks: int,
    heads: int,
    block_size: int,
    head_dim: int | tuple[int, int],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KVCache:
    """Return one layer's KV cache, contents undefined. The backend decides the layout.

    block_size must be a multiple of 16. head_dim: of keys and of values, as a pair where they differ.
    """
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
    """Return one layer's KV cache of eight-bit codes, on the CPU; contents undefined.

    `store_kv` encodes each token and head by itself. It keeps their scale: the largest magnitude over the largest code.
    `paged_attention` reads codes times scale. Numbers that are all below 2⁻¹⁰⁰ become zeros. NaN or infinity make the
    token's scale NaN, and so the attention of every token that sees it.

    Args:
        dtype: of the given keys and values, and of queries: bf16 or f32.
        code: the dtype of the codes. Codes of torch.int8 are −127 … 127. Their error is at most half a scale plus the
            rounding of 2⁻²². Codes of torch.float8_e4m3fn reach 448. Their error is at most 1/16 of the number, or 2⁻¹⁰
            of the scale (arXiv 2209.05433).

    Raises:
        ValueError: `code` is another dtype; or as in `make_cache`.
    """
    if code not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"codes of a KV cache must be torch.int8 or torch.float8_e4m3fn, got {code}")
    dims = (head_dim, head_dim) if isinstance(head_dim, int) else head_dim
    return choose("make_quantized_cache", "cpu", dtype)(num_blocks, heads, block_size, dims, dtype, code)


def store_kv(cache: KVCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Write keys [T, Hkv, D] and values [T, Hkv, Dv] to slots, int64 [T] (block · block_size + offset).

    Nothing else changes.

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
    selected: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute causal attention of a flat batch of query tokens over the paged cache, decodes and prefill chunks in one
    call.

    The tokens of sequence i are query_start[i] … query_start[i + 1] − 1. They are the last of its kv_len[i] positions,
    and their keys and values are in the cache already. Query head h reads KV head h // (Hq / Hkv). fp32 accumulation.
    On a GPU every sequence must have a token; a sequence with kv_len 0 is padding and gets zeros.

    (More than six parameters: five tensors, and the options in which models differ.)

    Args:
        query: [T, Hq, D].
        cache: of one layer.
        block_tables: int32 [N, B].
        query_start: int32 [N + 1].
        kv_len: int32 [N].
        scale: multiplies the scores.
        window: number of positions that each token sees. The token itself counts. 0: all.
        softcap: scores become softcap · tanh(score / softcap). Off at 0.
        chunk: a token at position p sees the positions from p − p mod chunk on (Llama 4). It sees all positions at 0.
        sinks: float32 [Hq], a score per head that has a share of the softmax and no value (gpt-oss, arXiv 2309.17453).
        batch_invariant: make the result on a GPU row-invariant too. It is slower for more than 8 tokens a sequence.
        selected: int64 [T, 1 or Hkv, W], the positions that a token of a KV head may see: bit j of word w is position
            64 w + j (sparse attention, arXiv 2512.02556). None: all.

    Returns:
        [T, Hq, Dv] in query's dtype. On the CPU it is row-invariant, also under any chunking of a prefill. On a GPU it
        is row-invariant with `batch_invariant`, and otherwise for sequences of up to 8 tokens.

    Raises:
        ValueError: shapes and dtypes do not fit. On the CPU also: a table names a block outside the cache, kv_len does
            not fit its table or `selected`, or query_start does not run from 0 to T.
    """
    options = AttentionOptions(scale, window, softcap, chunk, sinks, batch_invariant, selected)
    return choose("paged_attention", query.device.type, query.dtype)(
        query, cache, block_tables, query_start, kv_len, options
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False) -> torch.Tensor:
    """Return x / √(mean(x²) + eps) · weight over the last dimension; fp32 inside. Row-invariant.

    The normalised x is rounded before the product, as in Llama. With `plus_one` it is multiplied by 1 + weight in fp32
    and rounded once, as in Gemma (arXiv 1910.07467).
    """
    return choose("rms_norm", x.device.type, x.dtype)(x, weight, eps, plus_one)


def add_rms_norm(residual: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add delta to residual in place, both contiguous [..., dim]; return rms_norm(residual, weight, eps)."""
    return choose("add_rms_norm", residual.device.type, residual.dtype)(residual, delta, weight, eps)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Apply rotary position embedding in place, in the "rotate half" convention (arXiv 2104.09864). Row-invariant.

    x: [T, H, D], tokens may be strided. cos, sin: [T, rotary ≤ D] in x's dtype.
    """
    choose("rotary", x.device.type, x.dtype)(x, cos, sin)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) · up: [..., 2·dim], gate then up → [..., dim]. Row-invariant."""
    return choose("silu_mul", gate_up.device.type, gate_up.dtype)(gate_up)


def scan_heads(given: HeadScan, memory: torch.Tensor, walk: Walk | PlacedWalk) -> torch.Tensor:
    """Compute a linear recurrence with a matrix S per head.

    Instances are the gated delta rule (arXiv 2412.06464), Kimi's with a decay per row (arXiv 2510.26692), and Mamba 2
    (arXiv 2405.21060).

    S ← decay · S + key ⊗ update, with update = factor · (value − key · decay · S) under the delta rule, else factor ·
    value. The result is query · S. The arithmetic is fp32. It is row-invariant, under any chunking of a prompt, and on
    the CPU it has the same bits on every instruction set.

    On a GPU a sequence whose slot lies outside the memory, or whose positions would begin before 0, is padding: its
    tokens get zeros, and no state is read or written.

    Args:
        memory: float32 [entries, H, K, V], which the walk reads and writes.
        walk: where the sequences and their states are. A PlacedWalk is for a GPU.

    Returns:
        [T, H, V].

    Raises:
        ValueError: on the CPU or a GPU, shapes, dtypes or entries do not fit. A PlacedWalk has no entries to check.
    """
    return choose("scan_heads", given.value.device.type, given.value.dtype)(given, memory, walk)


def scan_channels(given: ChannelScan, memory: torch.Tensor, walk: Walk | PlacedWalk) -> torch.Tensor:
    """Compute Mamba's selective scan (arXiv 2312.00752): float32 [T, C]. Same invariance as `scan_heads`.

    h ← e^(rate · step) · h + step · x · b. The result is Σ c · h.

    Args:
        memory: float32 [entries, S, C], which the walk reads and writes.

    Raises:
        ValueError: as in `scan_heads`.
    """
    return choose("scan_channels", given.x.device.type, given.x.dtype)(given, memory, walk)


def convolve(given: Convolution, memory: torch.Tensor, walk: Walk | PlacedWalk) -> torch.Tensor:
    """Compute a causal convolution per channel: [T, C] in x's dtype. Same invariance as `scan_heads`.

    Args:
        memory: [entries, W − 1, C] in x's dtype, the inputs before; the walk reads and writes it.

    Raises:
        ValueError: as in `scan_heads`.
    """
    return choose("convolve", given.x.device.type, given.x.dtype)(given, memory, walk)


def philox(key: torch.Tensor, counter: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Compute Philox4x32-10 (Salmon et al., SC 2011); the same bits on every backend.

    key: int64, 64 bits. counter: four int64 tensors of 32 bits each. All are broadcast. Returns four int64 tensors of
    32 random bits each.
    """
    return choose("philox", key.device.type, torch.int64)(key, counter)


def gumbel(key: int, position: int, token_ids: torch.Tensor, stream: int) -> torch.Tensor:
    """Return standard Gumbel noise of one row, float32 [n], a function of (key, position, token id, stream) alone.

    Each number has at least 32 random bits, and 40 where the noise is large: a token of probability 1e-10 still wins as
    often as it should. The noise is finite: −3.2 … 28.5. Backends share the bits; their logarithms may differ in the
    last place. kernels/reference/noise.py explains how the noise can be bounded before it is computed.

    Args:
        key: 64-bit seed. position: 0 … 2^63 − 1. token_ids: int64 [n], 0 … 2^32 − 1.
        stream: 0 … 2^32 − 1; streams are independent.
    """
    return choose("gumbel", token_ids.device.type, torch.int64)(key, position, token_ids, stream)


def words(key: int, position: int, stream: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return 32 random bits per token id, int64 [n], a function of (key, position, stream, token id) alone.

    The bits are the same on every backend.
    """
    return choose("words", token_ids.device.type, torch.int64)(key, position, stream, token_ids)


def uniform(key: int, position: int, stream: int) -> float:
    """Return one number of 53 bits in (0, 1), a function of (key, position, stream) alone; the same on every
    backend."""
    return choose("uniform", "cpu", torch.int64)(key, position, stream)


def sample_head(
    hidden: torch.Tensor, weight: torch.Tensor, key: torch.Tensor, position: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Project the hidden states to logits and draw a token per row, for rows with nothing but a temperature.

    On a GPU the logits are never written to memory. The token is the argmax of l / T + Gumbel noise in double; with T =
    0 it is the likeliest token. Of equal ones the smaller id wins. The noise is that of `gumbel`. l is rounded to the
    dtype of `hidden`, as written logits are. This is exact Gumbel-max (Maddison et al., arXiv 1411.0030) over tiles, as
    in FlashSampling (arXiv 2603.15854). Compared with a draw from written logits, only ties within their rounding may
    differ.

    Args:
        hidden: [R, H], normed. weight: [V, H]. Both have one dtype (bf16, f16, f32); entries of a row are contiguous.
        key, position: int64 [R]. temperature: float64 [R], at least 0; not checked.

    Returns:
        As `argmax` does.
    """
    return choose("sample_head", hidden.device.type, hidden.dtype)(hidden, weight, key, position, temperature)


def set_num_threads(threads: int) -> None:
    """Set the number of threads of the C++ kernels, the calling one included. ValueError: it is less than 1."""
    from tailrace.kernels import cpu

    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    cpu.set_num_threads(threads)
