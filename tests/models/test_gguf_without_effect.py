"""Fields of a GGUF file that the conversion does not read: a table has the fields without effect, and others are
refused. A missing field has llama.cpp's value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as V

from gguf_judge.models import make_model
from models.gguf_writer import rewrite, write_model
from runners.quantized_file import convert_here
from tailrace.errors import ModelLoadError
from tailrace.models.gguf_architectures import read_settings
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_hybrids import read_gemma4
from tailrace.models.gguf_without_effect import PATTERNS, WITHOUT_EFFECT, list_reasons

PAGE = Path(__file__).parents[2] / "docs" / "gguf.md"
TEXT, NUMBER, FLAG = V.STRING, V.UINT32, V.BOOL
WITHOUT = {
    "general.name": ("Tiny", TEXT),
    "general.tags": (["a", "b"], V.ARRAY, TEXT),
    "general.base_model.0.repo_url": ("somewhere", TEXT),
    "general.sampling.mirostat": (2, NUMBER),
    "general.tensor_extra.name": (["output.weight"], V.ARRAY, TEXT),
    "general.tensor_extra.prec_a4": ([True], V.ARRAY, FLAG),
    "split.count": (0, V.UINT16),
    "quantize.imatrix.entries_count": (40, V.INT32),
    "mradermacher.quantized_at": ("2026-01-01", TEXT),
    "duynt.quantized.by": ("someone", TEXT),
    "tokenizer.ggml.fim_pre_token_id": (3, NUMBER),
    "tokenizer.ggml.middle_token_id": (3, NUMBER),
    "tokenizer.ggml.seperator_token_id": (3, NUMBER),
    "tokenizer.ggml.token_type_count": (2, NUMBER),
    "tokenizer.ggml.add_sep_token": (False, FLAG),
    "tokenizer.chat_templates": (["tool_use"], V.ARRAY, TEXT),
    "tokenizer.huggingface.json": ("{}", TEXT),
    "llama.rope.scaling.finetuned": (True, FLAG),
    "llama.attention.temperature_length": (8192, NUMBER),
}
REFUSED = {
    "tokenizer.ggml.add_sep_token": (True, FLAG),
    "tokenizer.ggml.remove_extra_whitespaces": (True, FLAG),
    "tokenizer.ggml.normalizer.lowercase": (True, FLAG),
    "tokenizer.ggml.precompiled_charsmap": ([1, 2], V.ARRAY, V.INT32),
    "tokenizer.ggml.of_tomorrow": (1, NUMBER),
    "general.tensor_extra.scale": (0.5, V.FLOAT32),
    "xielu.alpha_n": (0.5, V.FLOAT32),
    "diffusion.shift_logits": (True, FLAG),
    "gemma3.attention.scale": (0.5, V.FLOAT32),
    "somebody.note": ("x", TEXT),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(make_model("llama"), tmp_path_factory.mktemp("whole") / "tiny.gguf")


def convert_with(file: Path, folder: Path, fields: dict[str, Any]) -> dict[str, bytes]:
    """What the conversion writes."""
    made = folder / "made"
    made.mkdir(parents=True)
    convert_here(rewrite(file, folder / "tiny.gguf", fields), made, ("float32", "dequantized"))
    return {path.name: path.read_bytes() for path in made.iterdir()}


def test_fields_without_effect_change_nothing(file: Path, tmp_path: Path):
    plain = convert_with(file, tmp_path / "plain", {})
    assert convert_with(file, tmp_path / "more", WITHOUT) == plain


def test_each_family_without_effect_is_tried():
    """A pattern that matches none of the fields above would be untested. Two are in every file."""
    names = [name.removeprefix("llama.") for name in (*WITHOUT, "GGUF.version", "vocab_size")]
    assert [pattern for pattern in WITHOUT_EFFECT if not any(re.fullmatch(pattern, name) for name in names)] == []


@pytest.mark.parametrize("name", REFUSED)
def test_every_other_field_is_refused(name: str, file: Path, tmp_path: Path):
    with pytest.raises(ModelLoadError, match=f"^the field {re.escape(name)} is .*, which is not supported for llama"):
        convert_with(file, tmp_path, {name: REFUSED[name]})


def test_a_pattern_matches_a_whole_name():
    assert not PATTERNS.fullmatch("attention.vocab_size")
    assert not PATTERNS.fullmatch("vocab_size.of_tomorrow")


def test_the_page_shows_the_table():
    assert "\n".join(list_reasons()) in PAGE.read_text()


# model, the field that is missing → settings of llama.cpp's value
MISSING: dict[tuple[str, str], dict[str, Any]] = {
    ("gemma2", "attn_logit_softcapping"): {"attn_logit_softcapping": 50.0},
    ("gemma2", "final_logit_softcapping"): {"final_logit_softcapping": 30.0},
    ("gemma2", "attention.sliding_window"): {"sliding_window": 4096},
    ("gemma3", "attention.sliding_window"): {"sliding_window": None},
    ("olmo3", "attention.sliding_window"): {"sliding_window": None, "model_type": "olmo2"},
    ("exaone4", "attention.sliding_window"): {"sliding_window": None},
    ("command-r", "logit_scale"): {"logit_scale": 1.0},
    ("llama", "attention.head_count_kv"): {"num_key_value_heads": 4},
    ("granite", "attention.scale"): {"attention_multiplier": 32**-0.5},
    ("glm4moe", "expert_weights_norm"): {"norm_topk_prob": False},
}
NEEDED = {
    "cohere2": ("attention.sliding_window", "attention.layer_norm_epsilon"),
    "gpt-oss": ("attention.sliding_window", "attention.layer_norm_rms_epsilon"),
    "granite": ("logit_scale",),
    "deepseek2 v3": ("expert_gating_func", "rope.scaling.yarn_log_multiplier"),
    "llama": ("context_length", "block_count", "embedding_length", "attention.head_count"),
}


def without(name: str, key: str, folder: Path) -> Fields:
    file = write_model(make_model(name), folder / "whole.gguf")
    whole = Fields(file).name(key)
    assert whole in Fields(file).names()
    return Fields(rewrite(file, folder / "tiny.gguf", {whole: None}))


@pytest.mark.parametrize(("name", "key"), MISSING)
def test_a_missing_field_has_llama_cpps_value(name: str, key: str, tmp_path: Path):
    found = read_settings(without(name, key, tmp_path))[1]
    expected = MISSING[name, key]
    assert {setting: found[setting] for setting in expected} == expected
    if "sliding_window" in expected:
        assert ("sliding_attention" in found["layer_types"]) == bool(found["sliding_window"])


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in NEEDED.items() for key in keys])
def test_a_file_without_a_needed_field_is_refused(name: str, key: str, tmp_path: Path):
    with pytest.raises(ModelLoadError, match=rf"^the field [\w-]+\.{re.escape(key)} is missing"):
        read_settings(without(name, key, tmp_path))


def test_gemma4s_missing_fields_have_llama_cpps_values():
    """Its files have all others, which the writer of these tests does not write."""
    fields = FakeGemma4({"attention.sliding_window": 4, "attention.key_length": 8, "attention.key_length_swa": 4})
    settings: dict[str, Any] = {"num_hidden_layers": 6, "kv_heads_by_layer": [1] * 6, "feed_forward_by_layer": [8] * 6}
    read_gemma4(fields, settings)
    assert settings["final_logit_softcapping"] == 30.0
    assert settings["rope_parameters"]["sliding_attention"]["rope_theta"] == 10000.0
    assert settings["rope_parameters"]["full_attention"]["rope_theta"] == 10000.0


class FakeGemma4(Fields):
    """Fields of a file of Gemma 4, by the architecture's names."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.architecture, self.tensors, self.taken, self._read = "gemma4", {"blk.5.attn_v.weight": None}, set(), set()
        self._given = {f"gemma4.{key}": value for key, value in given.items()}

    def get_field(self, name: str, default: Any = None) -> Any:
        return self._given.get(name, default)
