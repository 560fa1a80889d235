"""An element's bits are the same wherever it lies in a tensor, and close to torch's own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tailrace.runners.invariant import PACKED, PRODUCTS, REPLACED, PlaceIndependent, select_mode

CASES = {
    "sigmoid": torch.sigmoid,
    "method": torch.Tensor.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "softplus, beta": partial(F.softplus, beta=2.0, threshold=4.0),
    "gelu": F.gelu,
    "gelu, tanh": partial(F.gelu, approximate="tanh"),
}
INPUT = torch.randn(1500, generator=torch.Generator().manual_seed(0)) * 5


def depends_on_place(function, x: torch.Tensor) -> bool:
    """Whether an element alone has other bits than in the tensor."""
    alone = torch.cat([function(x[i : i + 1]) for i in range(len(x))])
    return not torch.equal(alone, function(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_the_place_does_not_matter(case, dtype):
    x = INPUT.to(dtype)
    expected = CASES[case](x)
    with PlaceIndependent():
        assert not depends_on_place(CASES[case], x)
        torch.testing.assert_close(CASES[case](x), expected, atol=1e-6, rtol=2e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("product", [torch.matmul, torch.Tensor.matmul, lambda a, b: a @ b])
@torch.inference_mode()
def test_products_with_a_parameter(product):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 40, 96, generator=generator)
    left = nn.Parameter(torch.randn(33, 96, generator=generator), requires_grad=False)
    right = nn.Parameter(torch.randn(96, 33, generator=generator), requires_grad=False)
    expected = [left @ x.mT, x @ right, x @ x.mT]
    with PlaceIndependent():
        got = [product(left, x.mT), product(x, right), product(x, x.mT)]
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-5)
        assert not depends_on_place(lambda rows: product(left, rows.mT).mT, x[0])
        assert not depends_on_place(lambda rows: product(rows, right), x[0])
        assert getattr(left, PACKED).keys() == {""}
        assert getattr(right, PACKED).keys() == {"transposed"}
        assert torch.equal(torch.matmul(x[0, 0], right), x[0, 0] @ right)  # a vector


def test_extremes():
    x = torch.tensor([float("nan"), 0.0, 1e30, -1e30, 88.8, -104.0])
    for function in CASES.values():
        expected = function(x)
        with PlaceIndependent():
            torch.testing.assert_close(function(x), expected, equal_nan=True, atol=1e-30, rtol=1e-5)


def test_torch_alone_is_seen_to_depend_on_it():
    elementwise = REPLACED.keys() - {F.linear, *PRODUCTS}
    assert {function for function in elementwise if depends_on_place(function, INPUT)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_weight_that_is_no_modules(dtype):
    """As in a router: the rows of the product don't depend on their number, and a parameter is packed once."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 96, generator=generator).to(dtype)
    weight = nn.Parameter(torch.randn(33, 96, generator=generator).to(dtype), requires_grad=False)
    bias = torch.randn(33, generator=generator).to(dtype)
    expected = F.linear(x.float(), weight.float(), bias.float()).to(dtype)
    if dtype == torch.float32:
        assert depends_on_place(lambda rows: F.linear(rows, weight, bias), x)
    with PlaceIndependent():
        assert not depends_on_place(lambda rows: F.linear(rows, weight, bias), x)
        packed = getattr(weight, PACKED)[""]
        torch.testing.assert_close(F.linear(x, weight, bias), expected, atol=1e-5, rtol=1e-2)
        assert getattr(weight, PACKED)[""] is packed
        torch.testing.assert_close(F.linear(x, weight * 1, bias), expected, atol=1e-5, rtol=1e-2)
        half = F.linear(x.half(), weight.half(), bias.half())  # nothing of ours takes these
    torch.testing.assert_close(half.float(), expected.float(), atol=0.3, rtol=1e-1)


def test_modules_are_reached_and_nothing_is_paid_without_them():
    x = torch.randn(3, 8)
    assert select_mode(PlaceIndependent, lambda: nn.SiLU()(x)) is PlaceIndependent
    assert select_mode(PlaceIndependent, lambda: torch.relu(x) @ x.T) is not PlaceIndependent
