"""Embeddings of n-grams (Qwen4-exp): the token ids before are a state, and a text's end hides what lies before it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from architectures.judge import between_neighbours, logits, whole
from runners.tiny_models import VOCAB, save
from tailrace.config import ModelConfig
from tailrace.runners import load_runner
from tailrace.runners.indexers import RotaryTables, SelectedMask

pytestmark = pytest.mark.skipif(not hasattr(transformers, "Qwen4ExpTextConfig"), reason="transformers has no Qwen4-exp")
END = 2


def make_text(seed: int, length: int) -> list[int]:
    """Random ids, every fifth of which ends a text."""
    draw = random.Random(seed)
    return [END if draw.random() < 0.2 else draw.randrange(3, VOCAB) for _ in range(length)]


TEXTS = [make_text(1, 40), [END, END, *make_text(2, 31)], make_text(3, 37)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save("qwen4-exp", tmp_path_factory.mktemp("ngrams"))


@pytest.fixture(scope="module")
def runner(folder) -> Any:
    return load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=16)


@pytest.fixture(scope="module")
def theirs(folder) -> Any:
    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def spread(runner: Any, theirs: Any) -> float:
    """The largest relative error of a position's logits, in three passes beside others."""
    return max(
        float(((ours - exact).norm(dim=-1) / exact.norm(dim=-1)).max())
        for ours, exact in zip(logits(runner, TEXTS), (whole(theirs, text) for text in TEXTS), strict=True)
    )


def test_texts_that_end_in_between_are_reproduced(runner, theirs):
    assert spread(runner, theirs) < 1e-5


def test_a_token_alone_and_beside_others_has_the_same_bits(runner):
    assert between_neighbours(runner, TEXTS) == 0


@pytest.mark.parametrize("fault", ["tokens of the batch", "taps side by side", "tables of other positions"])
def test_faults_are_seen(runner, theirs, monkeypatch, fault):
    for module in runner.paged.model.modules():
        if fault == "tokens of the batch" and "_shift_right_ignore_eos" in vars(module):
            monkeypatch.setattr(module, "_shift_right_ignore_eos", lambda ids, shift: ids.roll(shift, 1))
        if fault == "taps side by side" and "_short_conv" in vars(module):
            own = module._short_conv
            monkeypatch.setattr(module, "_short_conv", replace(own, taps=own.taps.roll(1, 1)))
    if fault == "tables of other positions":
        take = RotaryTables.take
        monkeypatch.setattr(
            RotaryTables, "take", lambda self, n, like: tuple(table.roll(1, 1) for table in take(self, n, like))
        )
    assert spread(runner, theirs) > 1e-4


def test_tables_grow_and_keep_their_bits():
    made: list[int] = []

    def rotary(like: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made.append(at.shape[1])
        angles = at[..., None].float() * torch.tensor([1.0, 0.1])
        return angles.cos(), angles.sin()

    tables, like = RotaryTables(rotary), torch.empty(0)
    first = tables.take(10, like)
    assert [part.shape for part in first] == [(1, 10, 2)] * 2
    tables.take(7, like)
    again = tables.take(11, like)
    assert made == [10, 20]
    assert all(torch.equal(a, b[:, :10]) for a, b in zip(first, again, strict=True))


def test_a_mask_of_selections_becomes_positions():
    seen = torch.tensor([[[[True, False], [False, True]]]])
    for mask in (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 1, 1)):
        found: Any = mask.masked_fill(~SelectedMask(seen), -1.0)  # pyright: ignore[reportArgumentType]
        assert found.indices is None
        assert torch.equal(found.flags, seen[:, 0])
