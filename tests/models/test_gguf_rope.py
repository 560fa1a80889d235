"""Rotary embeddings of GGUF files: every factor and every size that a file states is used, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from gguf_judge.models import make_model
from models import gguf_writer
from models.gguf_writer import write_model
from models.test_gguf_architectures import WRITTEN, convert_file
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import describe
from tailrace.models.gguf_architectures import read_settings
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_parts import empty_model
from tailrace.models.gguf_rope import FREQUENCIES, LONG, PARTIAL, SHORT, plain_rope
from tailrace.runners.load_transformers import load_transformers

HALF = 16  # frequencies of the tiny llama's and phi's heads


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_model("llama")


def write_with(model: Any, path: Path, monkeypatch: pytest.MonkeyPatch, tensors: dict[str, Any], **more: Any) -> Path:
    """The file of a model with further tensors; None leaves one out."""
    add = GGUFWriter.add_tensor

    def add_others(self: GGUFWriter, name: str, values: Any, **options: Any) -> None:
        if name not in tensors:
            add(self, name, values, **options)

    def write_rope(writer: GGUFWriter, config: Any, name: str) -> None:
        rope(writer, config, name)
        for key, values in tensors.items():
            if values is not None:
                add(writer, key, np.asarray(values, np.float32))

    rope = gguf_writer.write_rope
    with monkeypatch.context() as patch:
        patch.setattr(GGUFWriter, "add_tensor", add_others)
        patch.setattr(gguf_writer, "write_rope", write_rope)
        return write_model(model, path, more=more)


def read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("ones", [SHORT, LONG])
def test_a_list_of_ones_stays_beside_the_other(ones: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = {SHORT: LONG, LONG: SHORT}[ones]
    tensors = {ones: [1.0] * HALF, other: [3.0] * HALF}
    rope = read_config(
        convert_file(write_with(make_model("phi3 longrope"), tmp_path / "a.gguf", monkeypatch, tensors))
    )["rope_parameters"]
    key = {SHORT: "short_factor", LONG: "long_factor"}
    assert (rope[key[ones]], rope[key[other]]) == ([1.0] * HALF, [3.0] * HALF)


@pytest.mark.parametrize("gone", [SHORT, LONG])
def test_one_list_without_the_other_is_refused(gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_with(make_model("phi3 longrope"), tmp_path / "a.gguf", monkeypatch, {gone: None})
    with pytest.raises(ModelLoadError, match=f"the tensor {gone} is missing"):
        convert_file(path)


@pytest.mark.parametrize(
    ("factors", "reason"),
    [
        ([3.0] * 5, "has 5 factors for 16 frequencies"),
        ([3.0] * 2 * HALF, "has 32 factors"),
        ([float("nan")] * HALF, "must be positive numbers"),
        ([float("inf")] + [1.0] * (HALF - 1), "must be positive numbers"),
        ([0.0] + [1.0] * (HALF - 1), "must be positive numbers"),
        ([-3.0] * HALF, "must be positive numbers"),
    ],
)
def test_each_frequency_has_a_positive_factor(
    llama: Any, factors: list[float], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_with(llama, tmp_path / "a.gguf", monkeypatch, {FREQUENCIES: factors})
    with pytest.raises(ModelLoadError, match=reason):
        convert_file(path)


def read_again(path: Path) -> Any:
    """The model that the file's fields describe, without memory."""
    return empty_model(read_settings(Fields(path))[1], torch.float32)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", [name for name in WRITTEN if " " not in name])
def test_a_part_of_a_head_is_turned_or_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In no model is the field ignored."""
    path = write_model(make_model(name), tmp_path / "a.gguf")
    count = Fields.count

    def half(self: Fields, key: str, *rest: Any, **named: Any) -> int:
        value = count(self, key, *rest, **named)
        return 8 if key == "rope.dimension_count" else value

    monkeypatch.setattr(Fields, "count", half)
    if Fields(path).architecture not in PARTIAL:
        with pytest.raises(ModelLoadError, match=r"rope\.dimension_count is 8"):
            read_again(path)
        return
    model = read_again(path)
    lengths = {len(value) for key, value in model.named_buffers() if key.endswith("inv_freq")}
    assert lengths == {4}


@pytest.mark.parametrize(("name", "turned"), [("llama", 64), ("llama", 16), ("glm4", 64), ("glm4", 0), ("glm4", 15)])
def test_no_other_part_of_a_head_is_turned(name: str, turned: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fields = Fields(write_model(make_model(name), tmp_path / "a.gguf"))
    monkeypatch.setattr(fields, "take", lambda key, *_: turned if key == "rope.dimension_count" else 10000.0)
    with pytest.raises(ModelLoadError, match=rf"the field {name}\.rope\.dimension_count is {turned}"):
        plain_rope(fields, 32)


KIND, FACTOR, ORIGINAL = "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"


@pytest.mark.parametrize(
    ("fields", "served"),
    [
        ({}, 8192),
        ({KIND: "linear", FACTOR: 4.0}, 8192),  # DeepSeek Coder's files
        ({KIND: "linear", FACTOR: 4.0, ORIGINAL: 2048}, 8192),
        ({KIND: "linear", FACTOR: 3.7}, 8192),
        ({KIND: "linear", FACTOR: 4.0, ORIGINAL: 8192}, 32768),
        ({"rope.scale_linear": 4.0}, 8192),
        ({KIND: "yarn", FACTOR: 4.0, ORIGINAL: 2048}, 8192),
        ({KIND: "yarn", FACTOR: 4.0, ORIGINAL: 8192}, 32768),  # Qwen's published setting
        ({KIND: "yarn", FACTOR: 2.0, ORIGINAL: 2048}, 8192),
        ({KIND: "yarn", FACTOR: 4.0}, 32768),  # llama.cpp takes context_length for the original one
        ({KIND: "none", FACTOR: 4.0}, 8192),
    ],
)
def test_the_runner_serves_the_context_of_the_file(llama: Any, fields: dict[str, Any], served: int, tmp_path: Path):
    """context_length is the whole context, unless the file states a longer one by an original length and a factor."""
    folder = convert_file(write_model(llama, tmp_path / "a.gguf", more=fields))
    assert describe(folder, "m").max_model_len == served
    config = ModelConfig(model=str(folder), dtype="float32", device="cpu")
    assert load_transformers(config, folder, block_size=16).max_model_len == served


def test_a_factor_that_makes_too_long_a_context_is_refused(llama: Any, tmp_path: Path):
    more = {KIND: "yarn", FACTOR: 1e9, ORIGINAL: 8192}
    with pytest.raises(ModelLoadError, match=r"a context of 8\.19e\+12 tokens, and 2147483647 is the most"):
        read_settings(Fields(write_model(llama, tmp_path / "a.gguf", more=more)))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["rope.freq_base", "attention.layer_norm_rms_epsilon"])
def test_bases_and_constants_are_positive(
    llama: Any, key: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    take = Fields.take
    monkeypatch.setattr(Fields, "take", lambda self, k, *rest: value if k == key else take(self, k, *rest))
    with pytest.raises(ModelLoadError, match=rf"the field llama\.{key} is {value}"):
        read_settings(Fields(write_model(llama, tmp_path / "a.gguf")))
