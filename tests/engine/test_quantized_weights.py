"""Weights in GGUF's blocks: greedy tokens are the same however the engine schedules the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.harness import Fickle, Harness
from runners.quantized_file import VOCAB, converted, write
from tailrace.config import ModelConfig
from tailrace.drafting.ngram import NGram
from tailrace.engine import cache_size
from tailrace.engine.cache_size import check_memory
from tailrace.errors import ModelLoadError
from tailrace.models.footprint import weights_bytes
from tailrace.runners import load_runner
from tailrace.runners.base import ModelRunner

COUNT = 24
PROMPTS = [[5, 9, 33, 7, 100, 2] * 5, [(7 * i * i + 3) % VOCAB for i in range(70)], [77, 3], [200, 31, 8] * 9]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Path]:
    folder: Path = tmp_path_factory.mktemp("model")
    config = ModelConfig(
        model=str(write(folder / "tiny.gguf")), cache_dir=str(folder), weights="quantized", threads=1, device="cpu"
    )
    return config, converted(config)


@pytest.fixture(scope="module")
def runner(model: tuple[ModelConfig, Path]) -> ModelRunner:
    return load_runner(*model, block_size=16)


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[list[int]]:
    """What each prompt gets when nobody else is there and its prefill is one pass."""
    return [said(runner, [prompt], max_num_seqs=1, max_num_batched_tokens=512)[0] for prompt in PROMPTS]


def said(runner: ModelRunner, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    harness = Harness(runner, **({"num_blocks": 64, "max_num_batched_tokens": 32} | options))
    for i, prompt in enumerate(prompts):
        harness.submit(str(i), prompt, max_tokens=COUNT, ignore_eos=True)
    stories = harness.run()
    return [stories[str(i), 0, 0].tokens for i in range(len(prompts))]


def test_the_model_says_something(alone: list[list[int]]):
    assert len({token for tokens in alone for token in tokens}) > 8


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 23},
        {"max_num_batched_tokens": 512, "overlap": "on"},
        {"num_blocks": 14},
        {"prefix_reuse": True},
        {"drafter": lambda _: NGram()},
    ],
    ids=["chunks", "small chunks", "one pass, overlapped", "preempted", "prefixes reused", "speculation"],
)
def test_every_schedule_gives_the_same_tokens(runner: ModelRunner, alone: list[list[int]], options: dict[str, Any]):
    assert said(runner, PROMPTS, **options) == alone


def test_drafts_that_are_rejected(runner: ModelRunner, alone: list[list[int]]):
    fickle = Fickle([prompt + tokens for prompt, tokens in zip(PROMPTS, alone, strict=True)], 0.6)
    assert said(runner, PROMPTS, drafter=lambda _: fickle) == alone


def test_too_little_memory_is_a_sentence(
    model: tuple[ModelConfig, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    config, folder = model
    need = weights_bytes(folder, 2, packed=True)
    monkeypatch.setattr(cache_size, "measure_available_memory", lambda: need)
    with caplog.at_level("INFO"):
        check_memory(folder, config)
    assert "weights will take" in caplog.text
    monkeypatch.setattr(cache_size, "measure_available_memory", lambda: need - 1)
    with pytest.raises(ModelLoadError, match=r"of memory for its weights, and .* available: end other programs"):
        check_memory(folder, config)
