"""The context length that settings state: the same for front ends, which read config.json, and for the loaded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_judge.models import LLAMA3, YARN, longrope, make_folder, plain
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import describe
from tailrace.models.context import context_length
from tailrace.runners.load_transformers import load_transformers

ORIGINAL = "original_max_position_embeddings"


def scaled(kind: str, stated: int, **rope: Any) -> dict[str, Any]:
    return {"max_position_embeddings": stated, "rope_parameters": {"rope_type": kind, **rope}}


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"n_positions": 1024}, 1024),
        ({}, 0),
        (scaled("default", 8192), 8192),
        (scaled("linear", 4096, factor=4.0), 16384),  # Vicuna 16K
        (scaled("linear", 16384, factor=4.0, **{ORIGINAL: 4096}), 16384),
        (scaled("linear", 131072, factor=8.0) | {"model_type": "gemma3_text"}, 131072),
        (scaled("dynamic", 4096, factor=2.0), 4096),
        (scaled("yarn", 40960, factor=4.0, **{ORIGINAL: 32768}), 131072),  # Qwen 3's published setting
        (scaled("yarn", 163840, factor=40, **{ORIGINAL: 4096}), 163840),  # DeepSeek V3
        (scaled("yarn", 163840, factor=4, **{ORIGINAL: 4096}), 163840),
        (scaled("yarn", 32768, factor=None, **{ORIGINAL: 4096}), 32768),
        (scaled("llama3", 131072, factor=8.0, **{ORIGINAL: 8192}), 131072),
        (scaled("longrope", 131072, factor=32.0, **{ORIGINAL: 4096}), 131072),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}, ORIGINAL: 1024}, 4096),
        (
            {
                "max_position_embeddings": 8192,
                "rope_parameters": {
                    "full_attention": {"rope_type": "yarn", "factor": 8.0, ORIGINAL: 8192},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            65536,
        ),
    ],
)
def test_context_length(config: dict[str, Any], length: int):
    assert context_length(config) == length


@pytest.mark.parametrize("factor", [0, -2.0, float("nan"), float("inf"), "4", True, 1e9])
def test_a_factor_that_makes_no_context_is_a_sentence(factor: Any, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 9, **scaled("linear", 4096, factor=factor)}))
    with pytest.raises(ModelLoadError, match=r"config\.json: .*factor"):
        describe(tmp_path, "m")


ROPES: dict[str, tuple[dict[str, Any], int]] = {
    "default": (plain(), 8192),
    "linear": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, 32768),
    "dynamic": (plain() | {"rope_type": "dynamic", "factor": 2.0}, 8192),
    "yarn": (YARN, 8192),
    "yarn beyond": (YARN | {"factor": 32.0}, 32768),
    "llama3": (LLAMA3, 8192),
    "longrope": (longrope(32), 8192),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", ROPES)
def test_the_runner_serves_the_context_of_a_folder(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rope, served = ROPES[kind]
    make_folder("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"rope_parameters": rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe(tmp_path, "m").max_model_len == served
    settings = ModelConfig(model=str(tmp_path), dtype="float32", device="cpu")
    assert load_transformers(settings, tmp_path, block_size=16).max_model_len == served
