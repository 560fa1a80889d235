"""Models that also see, and that transformers lists as image-text-to-text models alone: their text is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from runners.test_quantized_folder import config_for, in_this_process, loaded
from runners.tiny_models import MODELS, VOCAB, save
from tailrace.models.auto_class import find_auto_class
from tailrace.models.check_weights import check_against_config
from tailrace.runners import attention, indexers, load_runner

__all__ = ["in_this_process"]  # a fixture of every test here
CAUSAL, SEEING = transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [("llama", CAUSAL), ("gemma3", CAUSAL), ("qwen3_5", CAUSAL), ("mistral3", SEEING), ("qwen3_vl", SEEING)],
)
def test_a_causal_class_comes_first(model_type, kind):
    assert find_auto_class(transformers.CONFIG_MAPPING[model_type]()) is kind


def test_a_causal_class_of_the_folders_own_code_comes_first():
    config = transformers.CONFIG_MAPPING["mistral3"]()
    config.auto_map = {"AutoModelForCausalLM": "own.Model"}
    assert find_auto_class(config) is CAUSAL
    config.auto_map = {"AutoModelForImageTextToText": "own.Model"}
    assert find_auto_class(config) is SEEING


def test_one_that_is_no_model_of_language_has_the_causal_class_that_refuses_it():
    assert find_auto_class(transformers.CONFIG_MAPPING["vit"]()) is CAUSAL


@pytest.mark.parametrize("tied", [True, False])
def test_blocks_of_a_model_that_sees(tied, tmp_path: Path):
    """The whole model's settings say whether its output projection is the embedding, not the text's."""
    config = MODELS["mistral 3"]()
    config.tie_word_embeddings, config.text_config.tie_word_embeddings = tied, not tied
    torch.manual_seed(1)
    model = SEEING.from_config(config)
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").write_text("{}")
    found, ours = loaded(config_for(tmp_path / "saved", tmp_path, quantize="q8_0", dtype="float32"))
    types = json.loads((found / "config.json").read_text())["quantization_config"]["types"]
    assert sum("embed_tokens" in name or "lm_head" in name for name in types) == 2 - tied
    _, theirs = loaded(config_for(tmp_path / "saved", tmp_path, dtype="float32"))
    expected = theirs.paged.run_trial()
    assert expected.shape[-1] == VOCAB
    assert (ours.paged.run_trial() - expected).norm() / expected.norm() < 0.03


def test_heads_without_a_part_that_turns_have_size_zero(tmp_path: Path):
    """GLM-5.3 states so."""
    save("glm 5.3", tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["text_config"]["head_dim"] == 0
    check_against_config(tmp_path)


def test_selected_positions_take_the_place_of_a_mask(tmp_path: Path, monkeypatch):
    """Another selection gives other logits, so they are read."""
    save("glm 5.3", tmp_path)
    runner: Any = load_runner(config_for(tmp_path, tmp_path, dtype="float32"), tmp_path, block_size=16)
    runner.allocate_states(1, 2, 0)
    runner.allocate(8)
    before = runner.paged.run_trial()
    first = attention.SelectedPositions(torch.zeros(1, before.shape[0], 1, dtype=torch.int32))
    modules = [each for each in runner.paged.model.modules() if indexers.MASK_MAKER in vars(each)]
    assert len(modules) == 2
    for module in modules:
        monkeypatch.setattr(module, indexers.MASK_MAKER, lambda **_: first)
    assert not torch.allclose(runner.paged.run_trial(), before)
