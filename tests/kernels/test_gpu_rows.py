"""The GPU's norms, sums, products and elementwise operations: close to the reference, and a row's bits the same in any
company."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kernels.backends import DEVICES
from tailrace.kernels.dispatch import find
from tailrace.kernels.reference.products import Grouped

DEVICE = torch.device(DEVICES["gpu"])
HARDWARE = pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter adds as numpy does; bits are the GPU's")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
OF_ROWS = {  # operation → its further arguments, for rows of this length
    "rms_norm": lambda dim: (random(dim), 1e-5),
    "rms_norm, plus one": lambda dim: (random(dim), 1e-6, True),
    "silu_mul": lambda dim: (),
    "sum_rows": lambda dim: (float(dim),),
    "sum_rows, squared": lambda dim: (1.0, True),
}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def both(operation: str, *args) -> None:
    """The GPU's result and the reference's are close."""
    got, expected = (find(operation, backend)(*args) for backend in ("gpu", "reference"))
    assert got.shape == expected.shape
    bound = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got.float(), expected.float(), atol=bound, rtol=bound)


def arguments(case: str, dim: int, dtype: torch.dtype) -> tuple:
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) else x for x in OF_ROWS[case](dim))


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", OF_ROWS)
def test_rows(case, dtype):
    operation = case.partition(",")[0]
    for shape in ((1, 64), (7, 40), (2, 3, 130), (1, 5, 2, 16), (3, 5000)):
        x = random(*shape, dtype=dtype)
        both(operation, x, *arguments(case, shape[-1], dtype))
    wide = random(6, 4, 3 * 32, dtype=dtype)
    for x in (wide[:, :, 32:64], wide[:, 1:3, :32], wide.transpose(0, 1), wide[..., ::3], wide[:0], wide[..., 1:33]):
        both(operation, x, *arguments(case, x.shape[-1], dtype))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_norm_of_a_sum(dtype):
    for shape in ((1, 64), (7, 40), (2, 3, 130)):
        residual, delta = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=4)
        mine = residual.clone()
        got = find("add_rms_norm", "gpu")(mine, delta, random(shape[-1], dtype=dtype), 1e-5)
        expected = find("add_rms_norm", "reference")(residual, delta, random(shape[-1], dtype=dtype), 1e-5)
        for one, other in ((mine, residual), (got, expected)):  # the interpreter cuts bf16 off
            torch.testing.assert_close(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "dim", "width"), [(3, 32, 32), (2, 40, 24), (1, 16, 2)])
def test_rotary(dtype, heads, dim, width):
    x = random(5, 2 * heads, dim, dtype=dtype)
    cos, sin = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=4)
    got, expected = x.clone(), x.clone()
    find("rotary", "gpu")(got[:, heads:], cos, sin)
    find("rotary", "reference")(expected[:, heads:], cos, sin)
    torch.testing.assert_close(got, expected, atol=2 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(got[:, :heads], x[:, :heads])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_products_of_pairs(dtype):
    for batch, m, k, n in ((1, 1, 1, 1), (3, 5, 20, 7), (2, 33, 64, 65), (0, 2, 3, 4)):
        a, b = random(batch, m, k, dtype=dtype), random(batch, k, n, dtype=dtype, seed=4)
        both("bmm", a, b)
        both("bmm", a.mT.contiguous().mT, b.mT.contiguous().mT)
    with pytest.raises(ValueError, match="a must be"):
        find("bmm", "gpu")(a, b[:, :2])
    with pytest.raises(ValueError, match="all alike"):
        find("bmm", "gpu")(a, b.double())


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("counts", [[3, 0, 18, 1], [0, 0, 0, 0], [22, 0, 0, 0], [0, 1, 1, 1]])
def test_groups_of_rows(dtype, counts):
    """Rows behind the last group are 0."""
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], device=DEVICE)
    x, weight = random(24, 40, dtype=dtype), random(4, 70, 40, dtype=dtype, seed=4)
    both("grouped_linear", x, Grouped(weight, random(4, 70, dtype=dtype)), starts)
    both("grouped_linear", x, Grouped(weight.mT.contiguous().mT, None), starts)
    assert not find("grouped_linear", "gpu")(x, Grouped(weight, None), starts)[sum(counts) :].any()


# ---- bits


def invariant(run, x: torch.Tensor) -> bool:
    """Rows have the same bits alone, in any number, and at any place."""
    whole = run(x)
    parts = [slice(0, 1), slice(3, 5), slice(7, 40), slice(len(x) // 2, len(x)), slice(len(x) - 1, len(x))]
    return all(torch.equal(run(x[part]), whole[part]) for part in parts)


@HARDWARE
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", OF_ROWS)
def test_a_rows_bits_are_the_same_in_any_company(case, dtype):
    run = find(case.partition(",")[0], "gpu")
    for dim in (16, 128, 576, 1001, 2048, 4096, 14336):
        if case != "silu_mul" or dim % 2 == 0:
            more = arguments(case, dim, dtype)
            assert invariant(lambda rows, more=more: run(rows, *more), random(500, dim, dtype=dtype)), dim


@HARDWARE
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_products_bits(dtype):
    a, b = random(300, 3, 576, dtype=dtype), random(300, 576, 40, dtype=dtype, seed=4)
    whole = find("bmm", "gpu")(a, b)
    for part in (slice(0, 1), slice(5, 90)):
        assert torch.equal(find("bmm", "gpu")(a[part], b[part]), whole[part])
    wide = random(1, 300, 576, dtype=dtype)
    assert invariant(lambda rows: find("bmm", "gpu")(rows.transpose(0, 1), b[:1]).transpose(0, 1), wide.transpose(0, 1))
    weight = random(4, 256, 576, dtype=dtype, seed=4)

    def grouped(rows: torch.Tensor, before: int) -> torch.Tensor:
        """Rows of group 2, after others of group 1."""
        starts = torch.tensor([0, 0, before, before + len(rows), before + len(rows)], device=DEVICE)
        x = torch.cat([wide[0, :before], rows])
        return find("grouped_linear", "gpu")(x, Grouped(weight, None), starts)[before:]

    expected = grouped(wide[0], 0)
    for rows, before in ((1, 0), (1, 300), (17, 3), (40, 128), (299, 20)):
        assert torch.equal(grouped(wide[0, :rows], before), expected[:rows])


@HARDWARE
def test_the_comparison_sees_torchs_own():
    x = random(500, 4096)
    assert not invariant(partial(torch.mean, dim=-1), x)
