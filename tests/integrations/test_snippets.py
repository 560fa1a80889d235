"""The blocks for nano-vllm, mini-sglang and LMDeploy, called as the engines' sources call them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

PAGES = [Path(__file__).resolve().parents[2] / "docs" / "integrations" / name for name in ("sglang.md", "lmdeploy.md")]
PROBS, ROWS = torch.tensor([0.1, 0.4, 0.2, 0.3]), 400


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for path in PAGES:
        for block in re.findall(r"```py\n(.*?)```", path.read_text(), re.DOTALL):
            exec(compile(block, path.name, "exec"), scope)
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


def lmdeploy_inputs(**fields: Any) -> SimpleNamespace:
    """The fields of LMDeploy's SamplingInputs that its own method reads."""
    names = ("top_k", "top_p", "min_p", "random_seeds", "random_offsets")
    return SimpleNamespace(sampling_inputs=SimpleNamespace(**{"max_top_k": 0, **dict.fromkeys(names), **fields}))


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"max_top_k": 2, "top_k": 2}, {1, 3}),
        ({"top_k": -1}, {0, 1, 2, 3}),  # no limit
        ({"top_p": 0.6}, {1, 3}),
        ({"max_top_k": 2, "top_k": 2, "top_p": 0.55}, {1}),  # .4 of .7 is more than .55
        ({"min_p": 0.6}, {1, 3}),
        ({"max_top_k": 1, "top_k": 1}, {1}),
    ],
)
def test_lmdeploy(page, fields, kept):
    made = {name: column(value, torch.long if name == "top_k" else torch.float32) for name, value in fields.items()}
    inputs = lmdeploy_inputs(**made | {"max_top_k": fields.get("max_top_k", 0)})
    ids = page["sampling"](inputs, PROBS.log().repeat(ROWS, 1))
    assert set(ids.tolist()) == kept


def test_lmdeploys_seeds(page):
    """A row's token depends on its own seed and offset."""
    logits = PROBS.log().repeat(ROWS, 1)
    seeds, offsets = torch.arange(ROWS) % 5, torch.arange(ROWS) // 5 % 8
    ids = page["sampling"](lmdeploy_inputs(random_seeds=seeds, random_offsets=offsets), logits).tolist()
    assert ids[: ROWS // 2] == ids[40 : ROWS // 2 + 40]
    assert set(ids) == {0, 1, 2, 3}
