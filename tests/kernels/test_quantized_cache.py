"""Keys and values in eight bits: codes are those of the formula, and attention over them is that of the numbers that
they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernels.test_cpu_agrees import CONTEXTS, Scene
from tailrace import _cpu, kernels
from tailrace.kernels.dispatch import find

DTYPES = [torch.float32, torch.bfloat16]
CODES = [torch.int8, torch.float8_e4m3fn]
CPU = torch.device("cpu")
U = 2.0**-24  # of float32
ROUNDED = {torch.float32: 0.0, torch.bfloat16: 2.0**-8}  # weights, and what comes out
QUERY, WEIGHT = 127 * 128, 127 * 128 + 127  # the largest codes of a query's numbers and of weights, with int8
CHUNK = 64  # positions whose weights share a scale
EXP = 4e-7  # relative error of csrc/base/simd.h's exponential, and the rounding of its argument's factor


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    kernels.set_num_threads(2)


@pytest.fixture(params=[True, False], ids=["best", "portable"])
def instructions(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The widest instruction set, and the portable loops."""
    _cpu.want_avx512(request.param)
    yield request.param
    _cpu.want_avx512(True)


def hostile_rows(dim: int) -> torch.Tensor:
    """[T, 1, dim]: ties, zeros, extremes, and rows that are not finite."""
    inf, nan = float("inf"), float("nan")
    rows = torch.randn(40, dim) * torch.randn(40, 1).exp() * 10.0 ** torch.randint(-20, 20, (40, 1))
    rows[0] = 0.0
    rows[1] = -0.0
    rows[2] = torch.arange(dim) / 2 - dim / 4  # halves: with a largest of 127, ties
    rows[2, 0] = 127.0
    rows[3] = torch.arange(dim) * 2.0**-10  # below the numbers of float8 that have a leading one
    rows[3, 0] = 448.0
    rows[4] = 1e-44
    rows[5, :2] = torch.tensor([3.4e38, -3.4e38])
    rows[6, 3], rows[7, 3], rows[8, 3] = nan, inf, -inf
    rows[9] = 2.0**-100
    rows[10] = 2.0**-101
    return rows[:, None]


def kept(cache: kernels.KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of the values, as bytes [positions, D], and their scales [positions], of a cpu or reference cache with one
    head."""
    assert cache.scales is not None
    values = cache.values.view(torch.uint8)
    if values.dim() == 5:  # [blocks, 1, block_size / pair, Dv, pair]
        values = values.transpose(3, 4)
    return values.reshape(-1, cache.value_dim), cache.scales[1].flatten()


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [64, 36, 130])
def test_codes_are_the_formulas(code: torch.dtype, dtype: torch.dtype, dim: int, instructions: bool):
    rows = hostile_rows(dim).to(dtype)
    found = []
    for backend in ("cpu", "reference"):
        cache = find("make_quantized_cache", backend)(3, 1, 16, (dim, dim), dtype, code)
        find("store_kv", backend)(cache, rows, rows, torch.arange(len(rows)))
        codes, scales = kept(cache)
        found.append((codes[: len(rows)], scales[: len(rows)]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0, equal_nan=True)
    codes, scales = found[0][0].view(code).double(), found[0][1].double()
    exact, finite = rows[:, 0].double(), rows[:, 0].isfinite().all(-1)
    assert scales.isnan().tolist() == (~finite).tolist()
    off = (codes * scales[:, None] - exact)[finite].abs()
    of_scale, of_number = {torch.int8: (0.5 + 2.0**-15, 0.0), torch.float8_e4m3fn: (2.0**-10, 2.0**-4)}[code]
    bound = of_scale * scales[finite, None] + (of_number + 2.0**-20) * exact[finite].abs()
    assert (off <= bound * (1 + 2.0**-20) + 2.0**-100).all()
    assert (off > 0.4 * bound).any(), "the bound is loose"


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_is_widened_to_its_number(code: torch.dtype, dtype: torch.dtype, instructions: bool):
    """A token alone sees itself with weight one: out comes what was stored, where the scale is one. With int8, the
    weight is a code times a rounded scale."""
    every = torch.arange(256, dtype=torch.uint8).view(code).float()
    every = every[every.isfinite() & (every != -128)]
    every = torch.cat([every, every.new_zeros(256 - len(every))])  # the largest is 127, or 448
    for dim in (256, 128 + 16, 36):
        for first in (0, 256 - dim):
            numbers = every[first : first + dim].clone()
            numbers[0] = every.max()
            cache = kernels.make_quantized_cache(1, 1, 16, dim, dtype, code)
            kernels.store_kv(cache, numbers[None, None].to(dtype), numbers[None, None].to(dtype), torch.tensor([0]))
            one = torch.tensor([0, 1], dtype=torch.int32)
            out = kernels.paged_attention(
                torch.zeros(1, 1, dim, dtype=dtype), cache, one[None, :1], one, one[1:], scale=1.0
            )
            off = 3 * U if code == torch.int8 else 0.0
            assert ((out[0, 0].float() - numbers).abs() <= off * numbers.abs()).all()


def numbers_of(scene: Scene, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values that the reference cache stands for, float64 [Hkv, length, D]."""
    cache, length = scene.cache, scene.contexts[sequence][0]
    assert cache.scales is not None
    blocks, parts = scene.tables[sequence].long(), []
    for codes, scales in zip((cache.keys, cache.values), cache.scales, strict=True):
        numbers = codes.view(torch.uint8)[blocks].view(codes.dtype).double() * scales[blocks, ..., None].double()
        parts.append(numbers.transpose(0, 1).flatten(1, 2)[:, :length])
    return parts[0], parts[1]


def code_error(scene: Scene, sequence: int, weights: torch.Tensor) -> torch.Tensor:
    """How far the codes of weights [H, q, length] move the weighted sums [q, H, D]: each weight by half a code of the
    largest of its chunk, which is a weight times the scale of its value."""
    length, cache = weights.shape[-1], scene.cache
    assert cache.scales is not None
    blocks = scene.tables[sequence].long()
    scales = cache.scales[1, blocks].transpose(0, 1).flatten(1)[:, :length].double()
    codes = cache.values[blocks].transpose(0, 1).flatten(1, 2)[:, :length].abs().double()
    group = weights.shape[0] // scales.shape[0]
    scales, codes = scales.repeat_interleave(group, 0), codes.repeat_interleave(group, 0)
    error = torch.zeros(weights.shape[1], weights.shape[0], codes.shape[-1], dtype=torch.float64)
    for first in range(0, length, CHUNK):
        part = slice(first, first + CHUNK)
        seen, most = weights[..., part] > 0, (weights[..., part] * scales[:, None, part]).amax(-1, keepdim=True)
        error += torch.einsum("hqk,hkd->qhd", seen * most * (0.5 / WEIGHT), codes[:, part])
    return error


def exact(scene: Scene, window: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in float64 over the codes of a reference scene, and how far a kernel's may be from it.

    A score is a sum of D products, each rounded at most once, and at most six roundings stand alone (the scale, the
    factors, the subtraction of the maximum, which is twice the largest score at most). With δ the largest error of a
    score, weights and their sum are off by δ and by the exponential's error each. A weight in bfloat16 is rounded once
    more, and so is what comes out. The weighted sum has a rounding per position, and sum and mixture one per chunk of
    64 and one per merging of 512.

    With int8, a query's numbers and a chunk's weights are rounded to codes: by half a code at most.
    """
    coded = scene.cache.keys.dtype == torch.int8
    outs, bounds, first = [], [], 0
    for i, (length, count) in enumerate(scene.contexts):
        keys, values = numbers_of(scene, i)
        query = scene.query[first : first + count].double()
        first, group = first + count, query.shape[1] // keys.shape[0]
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scale = scene.dim**-0.5
        scores = torch.einsum("qhd,hkd->hqk", query, keys) * scale
        sizes = torch.einsum("qhd,hkd->hqk", query.abs(), keys.abs()) * scale
        at, position = torch.arange(length - count, length)[:, None], torch.arange(length)[None]
        hidden = (position > at) | ((position <= at - window) if window else False)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out = torch.einsum("hqk,hkd->qhd", weights, values)
        reach = torch.einsum("qhd,hkd->hqk", query.abs().amax(-1, keepdim=True).expand_as(query), keys.abs()) * scale
        sizes = sizes + coded * 0.5 / QUERY / ((scene.dim + 6) * U) * reach
        delta = (scene.dim + 6) * U * sizes.masked_fill(hidden, 0.0).amax(-1, keepdim=True)  # [H, q, 1]
        spread = torch.einsum("hqk,hkd->qhd", weights, values.abs())
        share = 2 * (delta.transpose(0, 1) + EXP) + (length * (1 + 1 / 32) + 8) * U
        outs.append(out)
        rounded = code_error(scene, i, weights) if coded else ROUNDED[scene.dtype] * spread
        bounds.append((share * spread + rounded) * 1.01 + ROUNDED[scene.dtype] * out.abs())
    return torch.cat(outs), torch.cat(bounds)


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [0, 20, 600])
def test_attention_is_that_of_the_numbers(code: torch.dtype, dtype: torch.dtype, window: int, instructions: bool):
    wanted, bound = exact(Scene("reference", dtype, CONTEXTS, code=code), window)
    scene = Scene("cpu", dtype, CONTEXTS, code=code)
    assert ((scene.run(window=window).double() - wanted).abs() <= bound).all()
    # planted fault: every position takes the scale of its neighbour
    assert scene.cache.scales is not None
    scene.cache.scales.copy_(scene.cache.scales.nan_to_num(1.0).roll(1, -1))
    assert ((scene.run(window=window).double() - wanted).abs() > bound).any()


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "dim", "size", "value_dim"),
    [((1, 1), 32, 16, 0), ((9, 3), 64, 32, 0), ((7, 7), 128, 16, 0), ((4, 2), 36, 48, 20), ((4, 4), 192, 16, 128)],
)
def test_shapes(code, dtype, heads, dim, size, value_dim, instructions):
    shape = [(40, 7), (100, 1), (33, 33)], heads, dim, size, value_dim
    wanted, bound = exact(Scene("reference", dtype, *shape, code=code))
    assert ((Scene("cpu", dtype, *shape, code=code).run().double() - wanted).abs() <= bound).all()


@pytest.mark.skipif(not _cpu.has_bf16(), reason="one instruction set alone")
@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 2), (6, 1), (28, 4)])
@pytest.mark.parametrize(("dim", "value_dim"), [(64, 0), (128, 0), (36, 20), (66, 66), (192, 128)])
def test_int8_has_the_same_bits_on_every_instruction_set(heads: tuple[int, int], dim: int, value_dim: int):
    scene = Scene("cpu", torch.bfloat16, CONTEXTS, heads, dim, value_dim=value_dim, code=torch.int8)
    best = scene.run(window=100)
    _cpu.want_avx512(False)
    try:
        portable = scene.run(window=100)
        assert torch.equal(portable, best)
        # planted fault: another key's scale
        assert scene.cache.scales is not None
        scene.cache.scales[0] = scene.cache.scales[0].nan_to_num(1.0).roll(1, -1)
        assert not torch.equal(scene.run(window=100), best)
    finally:
        _cpu.want_avx512(True)


@pytest.mark.parametrize("options", [{"softcap": 5.0}, {"chunk": 32}, {"sinks": torch.linspace(-3, 3, 6)}], ids=str)
@pytest.mark.parametrize("code", CODES, ids=str)
def test_options_of_attention(code: torch.dtype, options: dict[str, Any]):
    outs = [Scene(backend, torch.float32, CONTEXTS, code=code).run(**options) for backend in ("cpu", "reference")]
    away = 4e-4 if code == torch.int8 else 2e-5  # queries and weights are rounded to codes, of 2^-14 of the largest
    torch.testing.assert_close(*outs, atol=away, rtol=away)


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [0, 100])
def test_a_token_does_not_depend_on_its_neighbours_chunks_or_threads(code, dtype, window, instructions):
    scene = Scene("cpu", dtype, CONTEXTS, code=code)
    whole = scene.run(window=window)
    starts = torch.tensor([0, *torch.tensor([q for _, q in CONTEXTS]).cumsum(0).tolist()])
    for threads in (1, 3):
        kernels.set_num_threads(threads)
        assert torch.equal(scene.run(window=window), whole)
        for i, (_, count) in enumerate(CONTEXTS):
            mine = whole[starts[i] : starts[i + 1]]
            assert torch.equal(scene.run(only=i, window=window), mine)
            for cut in (slice(0, 1), slice(count // 3, count), slice(0, count - 1)):
                if len(range(count)[cut]):
                    assert torch.equal(scene.run(only=i, tokens=cut, window=window), mine[cut])


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_token_that_is_not_finite_is_seen_by_those_who_see_it(code, dtype, bad, instructions):
    cache = kernels.make_quantized_cache(2, 1, 16, 32, dtype, code)
    for which in (0, 1):
        key, value = torch.randn(20, 1, 32).to(dtype), torch.randn(20, 1, 32).to(dtype)
        (key, value)[which][11, 0, 3] = bad
        kernels.store_kv(cache, key, value, torch.arange(20))
        start, kv_len = torch.tensor([0, 20], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
        tables = torch.tensor([[0, 1]], dtype=torch.int32)
        out = kernels.paged_attention(torch.randn(20, 1, 32).to(dtype), cache, tables, start, kv_len, scale=0.2)
        assert out.isnan().flatten(1).any(1).tolist() == [False] * 11 + [True] * 9
        assert out[11:].isnan().all()


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_blocks_are_copied_with_their_scales(code: torch.dtype, backend: str):
    scene = Scene(backend, torch.float32, [(40, 7)], code=code)
    before, cache = scene.run(), scene.cache
    spare = torch.tensor([x for x in range(len(cache.keys)) if x not in scene.tables.flatten().tolist()][:3])
    cache.copy_blocks(scene.tables[0].long(), spare)
    scene.tables = spare[None].to(torch.int32)
    assert torch.equal(scene.run(), before)


def test_bad_input():
    with pytest.raises(ValueError, match=r"codes of a KV cache must be torch.int8 or torch.float8_e4m3fn, got"):
        kernels.make_quantized_cache(1, 1, 16, 32, torch.bfloat16, torch.uint8)
    with pytest.raises(ValueError, match="block_size must be a multiple of 16, got 8"):
        kernels.make_quantized_cache(1, 1, 8, 32, torch.bfloat16, torch.int8)
    with pytest.raises(ValueError, match="head_dim must be even"):
        kernels.make_quantized_cache(1, 1, 16, 33, torch.bfloat16, torch.int8)
    cache = kernels.make_quantized_cache(1, 1, 16, 32, torch.bfloat16, torch.int8)
    with pytest.raises(ValueError, match="slots must lie within the cache, got 16"):
        kernels.store_kv(cache, *torch.zeros(2, 1, 1, 32, dtype=torch.bfloat16), torch.tensor([16]))
    with pytest.raises(ValueError, match=r"key and value must be .* of torch.bfloat16"):
        kernels.store_kv(cache, *torch.zeros(2, 1, 1, 32), torch.tensor([0]))
