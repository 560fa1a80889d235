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
