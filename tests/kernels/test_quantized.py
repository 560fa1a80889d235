"""Weights in GGUF's blocks and in our own: widened as the package gguf does it, and products within a bound that is
derived here, the same bits for a row in any company and on every instruction set."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from tailrace import _cpu, kernels
from tailrace.kernels.cpu.quantized import BLOCKS


class Own(IntEnum):
    """Types that GGUF has not: 4 bits with a zero point, and scales in float32."""

    INT4_ZERO = 1000
    INT4_SINGLE = 1001
    INT4_SINGLE_ZERO = 1002
    INT8_SINGLE = 1003


TYPES = [GGMLQuantizationType(number) if number < 1000 else Own(number) for number in BLOCKS]
# where a block has its factors in float16, and the bytes that have no code
FACTORS = {"Q6_K": (208,), "Q3_K": (108,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
MINIMUMS = {"Q4_1": 4, "Q5_1": 4, "Q4_K": 16, "Q5_K": 16, "INT4_ZERO": 3, "INT4_SINGLE_ZERO": 5}
N, K = 150, 768
UNIT = 2.0**-24  # of a rounding in float32


def dequantize(raw: np.ndarray, kind: GGMLQuantizationType | Own) -> np.ndarray:
    """gguf.dequantize, and the same for our own types: (code − zero point) · scale, in float32."""
    if isinstance(kind, GGMLQuantizationType):
        return gguf.dequantize(raw, kind)
    parts = raw.reshape(len(raw), -1, BLOCKS[kind][1])
    size = 2 if kind == Own.INT4_ZERO else 4
    scale = parts[:, :, :size].copy().view(np.float16 if size == 2 else np.float32).astype(np.float32)
    if kind == Own.INT8_SINGLE:
        return (parts[:, :, 4:].view(np.int8).astype(np.float32) * scale).reshape(len(raw), -1)
    codes = np.concatenate([parts[:, :, -16:] & 15, parts[:, :, -16:] >> 4], -1).astype(np.float32)
    if kind == Own.INT4_SINGLE:
        return ((codes - 8) * scale).reshape(len(raw), -1)
    least = -(scale * parts[:, :, size : size + 1].astype(np.float32))
    return (codes * scale + least).reshape(len(raw), -1)


def blocks(kind: GGMLQuantizationType | Own, n: int = N, k: int = K, seed: int = 0) -> np.ndarray:
    """Random blocks [n, bytes of a row], all of whose scales are finite and some of them negative, zero or tiny."""
    random = np.random.default_rng(seed)
    block, size = BLOCKS[kind]
    raw = random.integers(0, 256, (n, k // block, size), np.uint8)
    if kind == GGMLQuantizationType.MXFP4:
        raw[:, :, 0] = random.integers(118, 124, raw.shape[:2])
        raw[0, :4, 0] = 0, 1, 2, 3
        return raw.reshape(n, -1)
    if kind.name.endswith("_ZERO"):
        raw[:, :, MINIMUMS[kind.name] - 1] = random.integers(0, 17, raw.shape[:2])
    for at in FACTORS.get(kind.name, (0,)):
        single = "SINGLE" in kind.name
        factors = random.normal(0, 0.02, raw.shape[:2]).astype(np.float32 if single else np.float16)
        factors[0, :3] = 0.0, 6e-8, -0.0
        raw[:, :, at : at + factors.itemsize] = factors[:, :, None].view(np.uint8)
    return raw.reshape(n, -1)


def minimums(kind: GGMLQuantizationType | Own, raw: np.ndarray) -> np.ndarray:
    """What is added to scale · code, [n, k]: the value of code 0. 0 where there are none."""
    if kind.name not in MINIMUMS:
        return np.zeros((1, 1))
    empty = raw.reshape(len(raw), -1, BLOCKS[kind][1]).copy()
    empty[:, :, MINIMUMS[kind.name] :] = 0
    return dequantize(empty.reshape(raw.shape), kind).astype(np.float64)


def rounded(x: torch.Tensor) -> np.ndarray:
    """The activations as the kernel has them, exactly: per 32, integers times largest / 127."""
    parts = x.float().numpy().reshape(len(x), -1, 32)
    largest = np.abs(parts).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(largest < 1e-30, 0, np.rint(parts * (np.float32(127) / largest)))
    scale = np.where(largest < 1e-30, 0, largest / np.float32(127))
    return (q.astype(np.float64) * scale.astype(np.float64)).reshape(len(x), -1)


def bound(x: np.ndarray, weights: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Of |float32 result − exact|, from the definition in csrc/quantized/blocks.h.

    A sum of integers is exact. It is rounded once when it is multiplied by the weights' scale, once when it is added;
    a minimum's product has one rounding (of `total`) and one where it is added; a weight that gguf widens has two.
    There are at most 3 additions per 32 inputs (two halves, or a product and a minimum), and each rounds what has been
    added so far. So every term suffers at most 3 K / 32 + 4 roundings, to the first order; 5 allows for the others.
    Terms are |x| (|weight − minimum| + |minimum|).
    """
    return (3 * x.shape[1] / 32 + 5) * UNIT * (np.abs(x) @ (np.abs(weights) + 2 * np.abs(least)).T)


def case(kind: GGMLQuantizationType | Own, rows: int = 5, k: int = K):
    raw = blocks(kind, k=k)
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(1))
    return raw, kernels.pack_quantized(torch.from_numpy(raw), int(kind), k), x


@pytest.fixture(autouse=True)
def widest():
    yield
    _cpu.use_at_most(99)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_are_widened_as_gguf_does(kind):
    raw, packed, _ = case(kind)
    expected = torch.from_numpy(dequantize(raw, kind))
    ids = torch.tensor([[0, 149, 3], [64, 63, 0]])
    assert torch.equal(kernels.quantized_rows(packed, torch.arange(N), torch.float32), expected)
    assert torch.equal(kernels.quantized_rows(packed, ids, torch.bfloat16), expected[ids].to(torch.bfloat16))


# eight blocks that share a head, and one, three or ten more; not where a block has 256 weights
WIDTHS = [(kind, k) for kind in TYPES for k in (K, 288, 352, 576) if k % BLOCKS[kind][0] == 0]


@pytest.mark.parametrize(("kind", "k"), WIDTHS, ids=lambda one: getattr(one, "name", str(one)))
def test_products_are_within_their_bound(kind, k):
    raw, packed, x = case(kind, k=k)
    weights, least = dequantize(raw, kind).astype(np.float64), minimums(kind, raw)
    got = kernels.linear(x, packed).double().numpy()
    error, most = np.abs(got - rounded(x) @ weights.T), bound(rounded(x), weights, least)
    assert (error <= most).all(), (error / most).max()
    half = kernels.linear(x.to(torch.bfloat16), packed)  # the same, rounded once more
    again = kernels.linear(x.to(torch.bfloat16).float(), packed)
    assert torch.equal(half, again.to(torch.bfloat16))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_the_bound_catches_one_wrong_bit(kind):
    """The lowest bit of the last code of a row, in a block with a scale of usual size."""
    raw, _, x = case(kind)
    broken = raw.copy()
    block, size = BLOCKS[kind]
    at = {"Q6_K": 60, "Q3_K": 94}.get(kind.name, size - 1)  # within a block, a byte of codes
    broken.reshape(N, K // block, size)[7, -1, at] ^= 1
    packed = kernels.pack_quantized(torch.from_numpy(broken), int(kind), K)
    weights, least = dequantize(raw, kind).astype(np.float64), minimums(kind, raw)
    error = np.abs(kernels.linear(x, packed).double().numpy() - rounded(x) @ weights.T)
    most = bound(rounded(x), weights, least)
    assert (error[:, 7] > most[:, 7]).any()
    assert (np.delete(error, 7, 1) <= np.delete(most, 7, 1)).all()


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_row_has_the_same_bits_in_any_company(kind):
    _, packed, _ = case(kind)
    x = torch.randn(300, K, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    together = kernels.linear(x, packed)
    kernels.set_num_threads(2)
    for parts in ([1] * 20 + [280], [2, 3, 295], [4, 5, 6, 31, 32, 33, 189], [257, 43], [16, 48, 47, 189]):
        assert torch.equal(torch.cat([kernels.linear(part, packed) for part in x.split(parts)]), together), parts
    assert torch.equal(kernels.linear(x[:, None].expand(300, 2, K), packed)[:, 1], together)


@pytest.mark.parametrize(("kind", "k"), WIDTHS, ids=lambda one: getattr(one, "name", str(one)))
def test_instruction_sets_agree_bit_for_bit(kind, k):
    _, packed, _ = case(kind, k=k)
    x = torch.randn(64, k, generator=torch.Generator().manual_seed(3))
    results = []
    for number in range(_cpu.best_quantized_set() + 1):
        _cpu.use_at_most(number)
        results.append(kernels.linear(x, packed))
        results.append(torch.cat([kernels.linear(row, packed) for row in x.split(3)]))
    assert all(torch.equal(result.view(torch.int32), results[0].view(torch.int32)) for result in results)


def test_zeros_have_one_sign_on_every_instruction_set():
    """Sums of zeros, a bias of −0, and scales of either sign."""
    raw = torch.from_numpy(blocks(GGMLQuantizationType.Q8_0))
    raw.view(N, -1, 34)[7, :, 1] |= 0x80  # all scales of an output are negative
    packed = kernels.pack_quantized(raw, 8, K, torch.full((N,), -0.0))
    for number in range(_cpu.best_quantized_set() + 1):
        _cpu.use_at_most(number)
        assert not kernels.linear(torch.zeros(40, K), packed).view(torch.int32).any()


def test_one_long_row_is_the_row_beside_others():
    """So long that several threads make it int8."""
    packed = kernels.pack_quantized(torch.from_numpy(blocks(GGMLQuantizationType.Q4_0, 64, 16384)), 2, 16384)
    x = torch.randn(5, 16384, generator=torch.Generator().manual_seed(4))
    kernels.set_num_threads(2)
    assert torch.equal(torch.cat([kernels.linear(row, packed) for row in x.split(1)]), kernels.linear(x, packed))


def test_a_sum_in_another_order_is_seen():
    """The negative control of the two tests above: blocks added from the last to the first."""
    raw, packed, x = case(GGMLQuantizationType.Q8_0)
    size = BLOCKS[8][1]
    turned = np.ascontiguousarray(raw.reshape(N, -1, size)[:, ::-1]).reshape(raw.shape)
    back = x.reshape(len(x), -1, 32).flip(1).reshape(x.shape)
    other = kernels.linear(back, kernels.pack_quantized(torch.from_numpy(turned), 8, K))
    assert not torch.equal(other, kernels.linear(x, packed))
    torch.testing.assert_close(other, kernels.linear(x, packed), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q6_K], ids=lambda kind: kind.name)
def test_extreme_rows(kind):
    """NaN and infinity spoil their own row only; zeros and tiny numbers give the bias."""
    raw, plain, x = case(kind, 64)
    bias = torch.randn(N)
    packed = kernels.pack_quantized(torch.from_numpy(raw), int(kind), K, bias)
    x[3, 100], x[40, 700], x[9], x[10] = float("nan"), float("inf"), 0.0, 1e-32
    for set_number in range(_cpu.best_quantized_set() + 1):
        _cpu.use_at_most(set_number)
        y = kernels.linear(x, packed)
        usual = raw[:, : BLOCKS[kind][1]].any(1)
        assert not y[3, usual].isfinite().any()
        assert not y[40, 1:].isfinite().any()
        assert torch.equal(y[9], bias)
        assert torch.equal(y[10], bias)
        others = [row for row in range(64) if row not in (3, 40)]
        assert y[others].isfinite().all()
    assert torch.equal(kernels.linear(x[others], packed), y[others])
    assert kernels.linear(x[:0], plain).shape == (0, N)


def test_joined_parts_are_the_parts_side_by_side():
    kinds = [(8, 128), (8, 70), (8, 10), (3, 64), (3, 64)]
    parts = [
        kernels.pack_quantized(torch.from_numpy(blocks(GGMLQuantizationType(kind), n, seed=i)), kind, K)
        for i, (kind, n) in enumerate(kinds)
    ]
    x = torch.randn(3, K)
    done = kernels.joined(parts)
    assert [(part.n, part.ggml_type) for part in done] == [(198, 8), (10, 8), (128, 3)]
    expected = torch.cat([kernels.linear(x, part) for part in parts], -1)
    assert torch.equal(torch.cat([kernels.linear(x, part) for part in done], -1), expected)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_groups_of_rows_are_those_of_their_layers(kind, biased):
    """On every instruction set, with few rows and many."""
    dtype = torch.bfloat16 if biased else torch.float32
    biases = torch.randn(5, N, dtype=dtype) if biased else [None] * 5
    raws = [torch.from_numpy(blocks(kind, seed=i)) for i in range(5)]
    layers = [kernels.pack_quantized(raw, kind, K, bias) for raw, bias in zip(raws, biases, strict=True)]
    starts = torch.tensor([1, 4, 4, 21, 321, 322])
    x = torch.randn(325, K, generator=torch.Generator().manual_seed(3)).to(dtype)
    kernels.set_num_threads(2)
    expected = torch.zeros(325, N, dtype=dtype)
    for layer, (first, last) in zip(layers, starts.unfold(0, 2, 1).tolist(), strict=True):
        expected[first:last] = kernels.linear(x[first:last], layer)
    for number in range(_cpu.best_quantized_set() + 1):
        _cpu.use_at_most(number)
        assert torch.equal(kernels.grouped_linear(x, kernels.group_packed(layers), starts), expected), number


def test_groups_must_be_alike():
    raw = torch.from_numpy(blocks(GGMLQuantizationType.Q8_0))
    packed, short = (kernels.pack_quantized(some, 8, K) for some in (raw, raw[1:]))
    for layers in ([packed, short], []):
        with pytest.raises(ValueError, match="one shape and type"):
            kernels.group_packed(layers)
    with pytest.raises(ValueError, match=r"x must be \[S, 768\]"):
        kernels.grouped_linear(torch.zeros(3, 32), kernels.group_packed([packed]), torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"x of torch\.float16 does not fit weights packed by"):
        kernels.grouped_linear(torch.zeros(3, K).half(), kernels.group_packed([packed]), torch.tensor([0, 3]))


def test_bad_input():
    raw = torch.from_numpy(blocks(GGMLQuantizationType.Q8_0))
    packed = kernels.pack_quantized(raw, 8, K)
    with pytest.raises(ValueError, match="no kernel for blocks of GGUF's type 10"):
        kernels.pack_quantized(raw, 10, K)
    with pytest.raises(ValueError, match=r"must be uint8 \[N, 816\], of blocks of 32 weights in 34 bytes"):
        kernels.pack_quantized(raw[:, 1:], 8, K)
    with pytest.raises(ValueError, match=r"bias must be \[150\]"):
        kernels.pack_quantized(raw, 8, K, torch.zeros(3))
    damaged = raw.clone()
    damaged[5, 1] = 0x7C
    with pytest.raises(ValueError, match="not finite"):
        kernels.pack_quantized(damaged, 8, K)
    single = torch.from_numpy(blocks(Own.INT8_SINGLE))
    single[5, 2:4] = torch.tensor([0x80, 0x7F])
    with pytest.raises(ValueError, match="not finite"):
        kernels.pack_quantized(single, 1003, K)
    for x in (torch.zeros(2, 32), torch.zeros(())):
        with pytest.raises(ValueError, match=r"x must be \[\.\.\., 768\]"):
            kernels.linear(x, packed)
    with pytest.raises(ValueError, match=r"ids must be in \[0, 150\), got 0 … 150"):
        kernels.quantized_rows(packed, torch.tensor([0, 150]), torch.float32)
    with pytest.raises(ValueError, match="dtype must be"):
        kernels.quantized_rows(packed, torch.tensor([0]), torch.float16)


def resident_mib() -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("groups", [1, 5])
def test_many_rows_take_little_memory_and_give_the_same_bits(groups):
    """They become int8 in parts, so the memory that a thread keeps does not grow with the prompts."""
    rows, k = 8192, 4096
    raw = torch.from_numpy(blocks(GGMLQuantizationType.Q8_0, 64, k))
    layers = [kernels.pack_quantized(raw, 8, k) for _ in range(groups)]
    packed = kernels.group_packed(layers)
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(2)).bfloat16()
    starts = torch.tensor([0, *sorted(torch.randperm(rows)[: groups - 1].tolist()), rows])
    before = resident_mib()
    found = kernels.grouped_linear(x, packed, starts)
    assert resident_mib() - before < 24  # 48 if all rows were int8 at once, and 1 for the result
    for row in (0, 1023, 1024, 2049, rows - 1):
        assert torch.equal(found[row], kernels.linear(x[row : row + 1], layers[0])[0])
