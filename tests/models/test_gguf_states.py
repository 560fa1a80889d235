"""GGUF files of models with state spaces, and of those with indexers, become the models that they were written from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as V
from gguf import dequantize
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_judge.hybrids import HYBRIDS
from gguf_judge.models import VOCAB, make_model
from models.gguf_state_writer import write_state_model
from models.gguf_writer import rewrite
from models.test_gguf_architectures import convert_file
from tailrace.errors import ModelLoadError
from tailrace.models.convert_quantized import list_expert_matrices
from tailrace.models.gguf_architectures import read_settings
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_states import find_period

WRITTEN = [
    name for name in HYBRIDS if name not in ("glm4 moe lite", "nemotron_h", "falcon-h1")
]  # the converter has all
IDS = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB - 3, (1, 90)))


@pytest.mark.few(6)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_becomes_the_model_that_it_was_written_from(name: str, tmp_path: Path):
    model = make_model(name)
    folder = convert_file(write_state_model(model, tmp_path / "tiny.gguf"))
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    mine, theirs = made.state_dict(), model.state_dict()
    assert mine.keys() == theirs.keys()
    for path, value in theirs.items():
        torch.testing.assert_close(mine[path], value, atol=2e-6, rtol=1e-5, msg=path)
    with torch.no_grad():
        torch.testing.assert_close(made(IDS).logits, model(IDS).logits, atol=1e-3, rtol=1e-3)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", WRITTEN)
def test_blocks_stay_and_are_the_same_weights(name: str, tmp_path: Path):
    model = make_model(name)
    path = write_state_model(model, tmp_path / "tiny.gguf", Type.Q8_0)
    kept, plain = (load_file(convert_file(path, keep) / "model.safetensors") for keep in (True, False))
    types = AutoConfig.from_pretrained(path.with_suffix(".True")).quantization_config["types"]
    assert kept.keys() == plain.keys()
    assert any(part.endswith(("in_proj.weight", "o_proj.weight")) for part in types)
    assert {part for part, _ in list_expert_matrices(model)} <= types.keys()
    for part, value in kept.items():
        if part in types:
            value = torch.from_numpy(dequantize(value.numpy(), Type(types[part])))
        assert torch.equal(value, plain[part]), part


# model, field without the architecture, a value and its types
REFUSED = [
    ("granitehybrid", "ssm.group_count", (3, V.UINT32)),
    ("granitehybrid", "ssm.inner_size", (200, V.UINT32)),
    ("granitehybrid", "expert_used_count", (5, V.UINT32)),
    ("granitehybrid", "attention.head_count_kv", ([0, 0, 0, 0], V.ARRAY, V.INT32)),
    ("granitehybrid", "attention.head_count_kv", ([0, 2, 0, 4], V.ARRAY, V.INT32)),
    ("mamba", "attention.head_count", (4, V.UINT32)),
    ("mamba", "ssm.inner_size", (0, V.UINT32)),
    ("mamba", "ssm.dt_b_c_rms", (3, V.UINT32)),
    ("mamba2", "ssm.time_step_rank", (7, V.UINT32)),
    ("jamba", "attention.head_count_kv", ([0, 2, 2, 0], V.ARRAY, V.INT32)),
    ("jamba", "expert_used_count", (9, V.UINT32)),
    ("nemotron_h_moe", "expert_gating_func", (1, V.UINT32)),
    ("nemotron_h_moe", "feed_forward_length", ([0, 64, 64, 64, 0], V.ARRAY, V.INT32)),
    ("kimi-linear", "expert_gating_func", (1, V.UINT32)),
    ("glm-dsa shared", "attention.indexer.types", ([False, True, True, True], V.ARRAY, V.BOOL)),
    ("glm-dsa shared", "attention.indexer.types", ([True, True], V.ARRAY, V.BOOL)),
    ("glm-dsa shared", "attention.indexer.top_k", (0, V.UINT32)),
]


@pytest.mark.parametrize(("name", "key", "given"), REFUSED)
def test_a_field_that_is_not_understood_is_refused(name: str, key: str, given: tuple[Any, ...], tmp_path: Path):
    path = write_state_model(make_model(name), tmp_path / "tiny.gguf")
    field = f"{Fields(path).architecture}.{key}"
    with pytest.raises(ModelLoadError, match=rf"the field {re.escape(field)} is .*, which is not supported"):
        read_settings(Fields(rewrite(path, tmp_path / "other.gguf", {field: given})))


def test_layers_without_an_indexer_are_known_by_their_tensors(tmp_path: Path):
    path = write_state_model(make_model("glm-dsa shared"), tmp_path / "tiny.gguf")
    other = rewrite(path, tmp_path / "other.gguf", {"glm-dsa.attention.indexer.types": None})
    assert read_settings(Fields(other))[1]["indexer_types"] == ["full", "full", "shared", "shared"]


@pytest.mark.parametrize(
    ("layers", "period"), [([0, 1, 0, 1], (2, 1)), ([0, 0, 1], (3, 2)), ([1, 1], (1, 0)), ([0, 1, 1], None)]
)
def test_a_period_has_just_the_marked_layers(layers: list[int], period: tuple[int, int] | None):
    assert find_period([bool(each) for each in layers]) == period
