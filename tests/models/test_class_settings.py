"""Folders whose config.json leaves sizes to the default of the model's class, as transformers' save_pretrained does in
sections of multimodal models, are read like folders that state them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tailrace.errors import ModelLoadError
from tailrace.models import class_settings, describe
from tailrace.models.config_files import NESTED
from tailrace.models.describe import eos_token_ids
from tailrace.models.footprint import block_bytes, weights_bytes
from tailrace.runners.load_transformers import load_model

SIZES = (
    *("vocab_size", "max_position_embeddings", "num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim"),
    *("num_key_value_heads", "n_positions", "n_embd", "n_layer", "n_head", "tie_word_embeddings", "rope_parameters"),
)
FLAT = (
    "Llama",
    "Mistral",
    "Qwen2",
    "Qwen3",
    "Gemma2",
    "Gemma3Text",
    "Phi3",
    "Glm4",
    "Olmo2",
    "GptOss",
    "GPT2",
    "Cohere2",
)
COMPOSED = ("Gemma3", "Gemma4", "Llava", "Idefics3", "Qwen3VL", "Qwen3_5", "PaliGemma", "Llama4", "InternVL")


def write(folder: Path, name: str, left_out: tuple[str, ...]) -> Path:
    """A folder without weights, whose config.json leaves out sizes that are the class's default."""
    kind: Any = getattr(transformers, f"{name}Config")
    kind().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    parts = [config[key] for key in NESTED if isinstance(config.get(key), dict)] or [config]
    for part in parts:
        default = transformers.AutoConfig.for_model(part["model_type"]).to_dict()
        for size in left_out:
            if part.get(size) == default.get(size):
                part.pop(size, None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", [*FLAT, *COMPOSED])
def test_sizes_of_the_class_count_like_stated_ones(tmp_path: Path, name: str):
    whole, partial = write(tmp_path / "whole", name, ()), write(tmp_path / "partial", name, SIZES)
    assert describe(partial, "m") == describe(whole, "m")
    assert block_bytes(partial, 16, 2) == block_bytes(whole, 16, 2) > 0
    assert weights_bytes(partial, 2, True) == weights_bytes(whole, 2, True)


@pytest.mark.parametrize("name", ["Qwen2", "Gemma2", "Llama"])
def test_the_shapes_of_the_weights_give_the_size_of_heads(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    head_dim = 8 if name == "Gemma2" else 12
    kind: Any = getattr(transformers, f"{name}Config")
    config = kind(**sizes, vocab_size=32, intermediate_size=16, head_dim=head_dim)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    stated = block_bytes(tmp_path, 16, 2)
    left_out = json.loads((tmp_path / "config.json").read_text())
    left_out.pop("head_dim", None)
    (tmp_path / "config.json").write_text(json.dumps(left_out))
    monkeypatch.setattr(class_settings, "class_settings", None)  # nobody asks transformers
    assert block_bytes(tmp_path, 16, 2) == stated == 2 * 2 * head_dim * 2 * 16


def test_what_a_section_states_wins(tmp_path: Path):
    folder = write(tmp_path, "Gemma3", ("vocab_size",))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {"max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    info = describe(folder, "m")
    assert (info.vocab_size, info.max_model_len) == (262208, 4096)


def test_the_end_of_the_class_counts_if_no_file_states_one(tmp_path: Path):
    folder = write(tmp_path, "Gemma3Text", ("eos_token_id",))
    assert eos_token_ids(folder) == [1]
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 106]}')
    assert eos_token_ids(folder) == [1, 106]


@pytest.mark.parametrize("model_type", [{}, {"model_type": "new"}, {"model_type": 3}])
def test_a_class_that_is_not_known_adds_nothing(tmp_path: Path, model_type: dict[str, Any]):
    (tmp_path / "config.json").write_text(json.dumps(model_type))
    with pytest.raises(ModelLoadError, match="has no vocab_size"):
        describe(tmp_path, "m")


def test_settings_that_take_too_much_memory_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """transformers makes a name for each label."""
    folder = write(tmp_path, "Gemma3", ("vocab_size",))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_labels": 10**9}))
    monkeypatch.delitem(sys.modules, "transformers")  # so a child is asked
    with pytest.raises(ModelLoadError, match=r"config.json: to read it takes too much memory$"):
        describe(folder, "m")
    with pytest.raises(ModelLoadError, match=r"take too much memory$"):
        load_model(folder, torch.float32, torch.device("cpu"), trust_remote_code=False)


@pytest.mark.parametrize(
    "code", ["raise ImportError", "raise SystemExit(3)", "import os; os._exit(0)"], ids=["broken", "exit", "end"]
)
def test_a_library_that_fails_in_the_child_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str):
    """The runner reports the reason later."""
    folder = write(tmp_path / "model", "Gemma3", ("vocab_size",))
    (tmp_path / "transformers.py").write_text(code)
    monkeypatch.delitem(sys.modules, "transformers")
    first = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    monkeypatch.setattr(
        class_settings, "make_script_command", lambda script, *words: [sys.executable, "-c", first + script, *words]
    )
    with pytest.raises(ModelLoadError, match="has no vocab_size"):
        describe(folder, "m")


def test_a_front_end_asks_a_child_and_imports_no_torch(tmp_path: Path):
    folder = write(tmp_path, "Gemma3", ("vocab_size",))
    code = (
        "import sys, pathlib; from tailrace.models import describe; "
        f"print(describe(pathlib.Path({str(folder)!r}), 'm').vocab_size, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["262208", "False"]
