"""Guidance as a function of two rows: the formula, its ends bit for bit, and what −∞ and NaN do."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from tailrace.sampling.guidance import guide, guide_rows

INF = math.inf


def rows(seed: int, dtype=torch.float32) -> torch.Tensor:
    return (torch.randn(5, 97, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_formula_in_float32_with_each_rows_own_scale(dtype):
    c, u, scale = rows(1, dtype), rows(2, dtype), torch.tensor([0.3, 1.5, 2.0, 7.0, 100.0])
    before = c.clone(), u.clone()
    got = guide(c, u, scale)
    assert got.dtype == torch.float32
    wanted = u.double() + scale.double()[:, None] * (c.double() - u.double())
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-4)
    assert torch.equal(c, before[0])
    assert torch.equal(u, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scale_one_is_the_conditional_and_zero_the_unconditional_bit_for_bit(dtype):
    c, u = rows(1, dtype) * 1e-3 + 1000, rows(2, dtype)
    u[1, 3], c[2, 4], u[3, 5] = -INF, -INF, math.nan
    assert torch.equal(guide(c, u, torch.ones(5)), c.float())
    assert torch.equal(guide(u[:3], c[:3], torch.zeros(3)), c[:3].float())
    assert not torch.equal(guide(c, u, torch.full((5,), 1.001)), c.float())


@pytest.mark.parametrize(
    ("c", "u", "scale", "wanted"),
    [
        (-INF, -INF, 2.0, -INF),
        (-INF, -INF, 0.5, -INF),
        (-INF, 1.0, 2.0, -INF),
        (-INF, 1.0, 0.5, -INF),
        (-INF, 1.0, 0.0, 1.0),
        (3.0, -INF, 2.0, 3.0),
        (3.0, -INF, 1.0, 3.0),
        (3.0, -INF, 0.5, -INF),
        (3.0, 1.0, 2.0, 5.0),
        (math.nan, -INF, 0.5, math.nan),
        (-INF, math.nan, 2.0, math.nan),
    ],
)
def test_what_is_excluded(c, u, scale, wanted):
    got = float(guide(torch.tensor([[c, 0.0]]), torch.tensor([[u, 0.0]]), torch.tensor([scale]))[0, 0])
    assert got == wanted or (math.isnan(got) and math.isnan(wanted))


@pytest.mark.parametrize(
    ("c", "u", "scale", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), torch.ones(2), r"must be \[R, V\]"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(3), r"must be \[R, V\]"),
        (torch.zeros(3), torch.zeros(3), torch.ones(3), r"must be \[R, V\]"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([1.0, -0.5]), "at least 0, got"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([1.0, INF]), "finite"),
    ],
)
def test_bad_input(c, u, scale, message):
    with pytest.raises(ValueError, match=message):
        guide(c, u, scale)


@QUIET
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_says_the_same_whatever_is_infinite(dtype):
    c, u = rows(1, dtype), rows(2, dtype)
    for at, (mine, other) in enumerate(
        [(-INF, 1.0), (1.0, -INF), (-INF, -INF), (math.nan, 1.0), (1.0, math.nan), (INF, 1.0)]
    ):
        c[:, at], u[:, at] = mine, other
    both = torch.cat([c, u]).to(DEVICES["gpu"])
    own, companion = torch.tensor([0, 1, 2, 3, 4, 4]), torch.tensor([5, 6, 7, 8, 9, 8])
    scale = torch.tensor([0.0, 0.3, 1.0, 1.5, 7.0, 2.0])
    found = guide_rows(both, own, companion, scale, kernel=True).cpu()
    torch.testing.assert_close(found, guide_rows(both.cpu(), own, companion, scale), rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(found[3:], guide_rows(both.cpu(), own, companion, scale + 0.01)[3:])
