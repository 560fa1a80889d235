"""The blocks for nano-vllm and mini-sglang, called as the engines' sources call them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations" / "sglang.md"
PROBS, ROWS = torch.tensor([0.1, 0.4, 0.2, 0.3]), 400


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for block in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), scope)
    return scope


def column(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((ROWS,), value, dtype=dtype)


def test_nano_vllm(page):
    """With a tensor of temperatures, and in versions that have top-p with one more."""
    logits, sampler = PROBS.log().repeat(ROWS, 1), page["Sampler"]()
    assert set(sampler(logits, column(1.0)).tolist()) == {0, 1, 2, 3}
    assert set(sampler(logits, column(1.0), column(0.6)).tolist()) == {1, 3}
    assert set(sampler(logits, column(0.01)).tolist()) == {1}


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (None, None, {0, 1, 2, 3}),
        (2, None, {1, 3}),
        (4, 0.6, {1, 3}),  # 4 is the vocabulary: nobody's top-k
        (None, 0.8, {1, 2, 3}),
        (2, 0.55, {1}),  # .4 of .7 is more than .55; of the whole distribution both tokens would stay
    ],
)
def test_mini_sglang(page, top_k, top_p, kept):
    k = None if top_k is None else column(top_k, torch.int32)
    p = None if top_p is None else column(top_p)
    ids = page["sample_impl"](PROBS.log().repeat(ROWS, 1), column(1.0), k, p)
    assert ids.dtype == torch.int32
    assert set(ids.tolist()) == kept


def test_mini_sglangs_greedy_rows(page):
    """It gives them its smallest temperature beside rows that are sampled."""
    logits = PROBS.log().repeat(ROWS, 1)
    assert set(page["sample_impl"](logits, column(1e-6), None, None).tolist()) == {1}
