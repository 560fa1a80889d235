"""What is read from a folder's JSON files: vocabulary, context, ends, sampling defaults; without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models import defaults, describe
from tailrace.models.describe import context_length, eos_token_ids

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


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 131072),
        (
            {
                "max_position_embeddings": 163840,
                "rope_parameters": {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default"}}, 8192),
        ({}, 0),
    ],
)
def test_context_length(config: dict[str, Any], length: int):
    assert context_length(config) == length


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


def test_defaults_only_where_the_authors_sample(tmp_path: Path):
    said = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "repetition_penalty": 1.1, "max_new_tokens": 5}
    assert defaults(tmp_path) == {}
    assert defaults(folder(tmp_path, generation_config=said)) == {"repetition_penalty": 1.1}
    folder(tmp_path, generation_config={**said, "do_sample": True})
    assert defaults(tmp_path) == {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}


def test_defaults_out_of_range_are_refused(tmp_path: Path):
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: top_p must be .*1\.5"):
        defaults(folder(tmp_path, generation_config={"do_sample": True, "top_p": 1.5}))


def test_describing_imports_no_torch(tmp_path: Path):
    path = folder(tmp_path, config=CONFIG, tokenizer_config={"eos_token": "a"}, tokenizer={"added_tokens": []})
    code = (
        "import sys; from pathlib import Path; from tailrace.models import defaults, describe; p = Path(sys.argv[1]);"
        "describe(p, 'm'); defaults(p); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0
