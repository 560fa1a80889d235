"""An element's bits are the same wherever it lies in a tensor, and close to torch's own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tailrace.runners.elementwise import REPLACED, PlaceIndependent, needed

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


def test_extremes():
    x = torch.tensor([float("nan"), 0.0, 1e30, -1e30, 88.8, -104.0])
    for function in CASES.values():
        expected = function(x)
        with PlaceIndependent():
            torch.testing.assert_close(function(x), expected, equal_nan=True, atol=1e-30, rtol=1e-5)


def test_torch_alone_is_seen_to_depend_on_it():
    assert {function for function in REPLACED if depends_on_place(function, INPUT)}


def test_modules_are_reached_and_nothing_is_paid_without_them():
    x = torch.randn(3, 8)
    assert needed(lambda: nn.SiLU()(x)) is PlaceIndependent
    assert needed(lambda: torch.relu(x) @ x.T) is not PlaceIndependent
