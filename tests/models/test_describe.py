"""What is read from a folder's JSON files: vocabulary, context, ends, sampling defaults; without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models import describe
from tailrace.models.describe import defaults, eos_token_ids

CONFIG = {"vocab_size": 100, "max_position_embeddings": 512, "eos_token_id": 2}


def folder(tmp_path: Path, **files: Any) -> Path:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_plain(tmp_path: Path):
    info = describe(folder(tmp_path, config=CONFIG), "m")
    assert (info.name, info.vocab_size, info.max_model_len, info.eos_token_ids) == ("m", 100, 512, [2])


def test_nested_text_config_wins(tmp_path: Path):
    config = {"vocab_size": 5, "eos_token_id": 9, "text_config": {**CONFIG, "eos_token_id": [2, 3]}}
    info = describe(folder(tmp_path, config=config), "m")
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (100, 512, [2, 3, 9])


def test_the_ends_are_a_union(tmp_path: Path):
    model = {"type": "BPE", "vocab": {"a": 0}}
    path = folder(
        tmp_path,
        config=CONFIG,
        generation_config={"eos_token_id": [2, 7]},
        tokenizer_config={"eos_token": {"content": "<end>"}},
        tokenizer={"added_tokens": [{"id": 42, "content": "<end>", "special": True}], "model": model},
    )
    assert eos_token_ids(path) == [2, 7, 42]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer": {"added_tokens": [], "model": {"vocab": {"x": 0, "<end>": 5}}}}, [2, 5]),
        ({"tokenizer": {"added_tokens": [], "model": {"vocab": [["x", 0.0], ["<end>", -1.5]]}}}, [1, 2]),
        ({"tokenizer": {"added_tokens": [{"id": 0, "content": "<end>"}]}}, [0, 2]),
        ({"added_tokens": {"<end>": 6}}, [2, 6]),
        ({"vocab": {"<end>": 8}}, [2, 8]),
        ({}, [2]),
    ],
)
def test_the_tokenizers_end_wherever_it_is_written(tmp_path: Path, files: dict[str, Any], expected: list[int]):
    path = folder(tmp_path, config=CONFIG, tokenizer_config={"eos_token": "<end>"}, **files)
    assert eos_token_ids(path) == expected


def test_the_tokenizers_end_in_its_config(tmp_path: Path):
    config = {"eos_token": "<end>", "added_tokens_decoder": {"11": {"content": "<end>"}}}
    assert eos_token_ids(folder(tmp_path, config=CONFIG, tokenizer_config=config)) == [2, 11]


def test_max_model_len_is_refused_beyond_the_context_not_clamped(tmp_path: Path):
    path = folder(tmp_path, config=CONFIG)
    assert describe(path, "m", 100).max_model_len == 100
    with pytest.raises(ConfigError, match=r"max_model_len must be at most .* 512 .* got 513"):
        describe(path, "m", 513)


def test_no_stated_context_must_be_given(tmp_path: Path):
    path = folder(tmp_path, config={"vocab_size": 100}, tokenizer_config={"model_max_length": 1e30})
    with pytest.raises(ConfigError, match=r"max_model_len"):
        describe(path, "m")
    assert describe(path, "m", 64).max_model_len == 64
    folder(tmp_path, tokenizer_config={"model_max_length": 77})
    assert describe(path, "m").max_model_len == 77


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_an_unreadable_config_is_named(tmp_path: Path, text: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        describe(tmp_path, "m")


def test_no_vocab_size(tmp_path: Path):
    with pytest.raises(ModelLoadError, match="vocab_size"):
        describe(folder(tmp_path, config={"max_position_embeddings": 1}), "m")


@pytest.mark.parametrize("more", [{}, {"do_sample": True}, {"do_sample": False}], ids=str)
def test_defaults_are_the_fields_that_vllm_takes(tmp_path: Path, more: dict[str, bool]):
    assert defaults(tmp_path) == {}
    kept = {"temperature": 0.6, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    kept |= {"presence_penalty": 0.5, "frequency_penalty": -0.25}
    said = kept | {"top_k": None, "max_new_tokens": 5, "max_length": 20, "num_beams": 1, "typical_p": 0.9, "stop": "x"}
    assert defaults(folder(tmp_path, generation_config=said | more)) == kept | {"max_tokens": 5}


def test_defaults_out_of_range_are_refused(tmp_path: Path):
    for name, value in {"top_p": 1.5, "presence_penalty": 1e9, "max_new_tokens": -3, "temperature": "hot"}.items():
        with pytest.raises(ModelLoadError, match=rf"generation_config\.json: {name} must be .*{value}"):
            defaults(folder(tmp_path, generation_config={name: value}))


def test_describing_imports_no_torch(tmp_path: Path):
    path = folder(tmp_path, config=CONFIG, tokenizer_config={"eos_token": "a"}, tokenizer={"added_tokens": []})
    code = (
        "import sys; from pathlib import Path; from tailrace.models.describe import defaults, describe;"
        "p = Path(sys.argv[1]); describe(p, 'm'); defaults(p);"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0
