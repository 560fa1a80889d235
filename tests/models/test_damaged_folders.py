"""Folders that nobody should trust: each damaged file of a model, a drafter or an adapter is one sentence.

The tables are the test: a new kind of damage is a row.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models

from runners.quantized_folder import random_weights, write
from tailrace.base import regex_search
from tailrace.config import ModelConfig
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models import describe, resolve
from tailrace.models.describe import defaults
from tailrace.models.footprint import weights_bytes
from tailrace.runners.lora_files import LinearShape, read_adapter
from tailrace.text.tokenizer import Tokenizer

DEEP = 100_000
CONTENT = {  # what a file of JSON holds → what the sentence says
    "deep list": (b"[" * DEEP, "nests too deeply"),
    "deep object": (b'{"a":' * DEEP, "nests too deeply"),
    "long integer": (b'{"vocab_size": ' + b"1" * 5000 + b"}", "can't be read: Exceeds the limit"),
    "not UTF-8": (b'{"a": "\xff"}', "can't be read: 'utf-8' codec"),
    "cut short": (b'{"a": ', "is not JSON: Expecting value"),
    "a list": (b"[]", "should hold a JSON object, but holds a list"),
    "null": (b"null", "should hold a JSON object, but holds a NoneType"),
    "zeros": (bytes(100), "is not JSON"),
}


def make_giant(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {  # what is in the file's place
    "FIFO": (os.mkfifo, "is a FIFO, not a file"),
    "folder": (Path.mkdir, "is a folder, not a file"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
    "giant": (make_giant, "has more than 64 MiB"),
    "loop": (lambda path: path.symlink_to(path), "Too many levels of symbolic links|lacks config.json"),
}
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = KINDS | {
    name: (lambda path, content=content: path.write_bytes(content), words) for name, (content, words) in CONTENT.items()
}
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "quantize_config.json",
    "model.safetensors.index.json",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("whole") / "model", random_weights())
    Backend(models.BPE({"a": 0}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy whose files may be replaced; they must not be written to."""
    return Path(shutil.copytree(whole, tmp_path / "model", copy_function=os.link))


def read(folder: Path) -> None:
    """Read the folder as a start does, before the engine."""
    config = ModelConfig(model=str(folder), cache_dir=str(folder.parent / "cache"))
    found = resolve(config, progress=False).folder
    describe(found, "m")
    defaults(found)
    weights_bytes(found, 2, packed=True)
    Tokenizer.load(found)


def damage(path: Path, kind: str) -> str:
    """Damage the file. Return what the sentence says."""
    path.unlink(missing_ok=True)
    make, words = DAMAGE[kind]
    make(path)
    return words


def check_sentence(error: pytest.ExceptionInfo[ConfigError], name: str) -> None:
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_damaged_file_of_settings(folder: Path, name: str, kind: str):
    words = damage(folder / name, kind)
    with pytest.raises(ModelLoadError, match=words) as error:
        read(folder)
    check_sentence(error, name)


HUGE = 10**400
VALUES = [  # a file, what it holds besides, and what the sentence says
    ("config.json", {"vocab_size": HUGE}, "vocab_size must be at most"),
    ("config.json", {"vocab_size": "many"}, "vocab_size must be a whole number from 1"),
    ("config.json", {"num_hidden_layers": 10**9}, "states 1000000000 layers"),
    ("config.json", {"max_position_embeddings": None, "n_ctx": HUGE}, "the context must be at most"),
    (
        "config.json",
        {"rope_scaling": {"type": "linear", "factor": HUGE}},
        "factor of rotary",
    ),
    (
        "config.json",
        {"rope_scaling": {"type": "yarn", "factor": 1e9, "original_max_position_embeddings": HUGE}},
        "most",
    ),
    ("config.json", {"rope_scaling": {"type": ["yarn"], "factor": 2}}, None),
    ("config.json", {"eos_token_id": "2"}, "config.json: eos_token_id must be token ids, got 2"),
    ("config.json", {"eos_token_id": [[2]]}, "eos_token_id must be token ids"),
    ("config.json", {"eos_token_id": {"a": 1}}, "eos_token_id must be token ids"),
    ("config.json", {"eos_token_id": True}, "eos_token_id must be token ids, got True"),
    ("config.json", {"eos_token_id": HUGE}, "eos_token_id must be token ids"),
    ("config.json", {"quantization_config": [1]}, None),
    ("config.json", {"quantization_config": {"quant_method": ["gptq"]}}, None),
    ("config.json", {"text_config": [1]}, None),
    ("generation_config.json", {"temperature": "hot"}, "generation_config.json: temperature"),
    ("generation_config.json", {"temperature": HUGE}, "generation_config.json: temperature"),
    ("generation_config.json", {"top_k": 1.5}, "generation_config.json: top_k"),
    ("generation_config.json", {"max_new_tokens": [1]}, "generation_config.json: max_new_tokens"),
    ("generation_config.json", {"eos_token_id": -1}, "generation_config.json: eos_token_id must be token ids"),
    ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder is no table"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"1": 2}}, "added_tokens_decoder is no table"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder has the id"),
    ("tokenizer_config.json", {"eos_token": ["a"]}, None),
    ("tokenizer_config.json", {"model_max_length": "many"}, None),
    ("tokenizer_config.json", {"chat_template": 5}, "chat_template should be a text"),
    ("model.safetensors.index.json", {"weight_map": {"a": "../../etc/passwd"}}, "which is no file of it"),
    ("model.safetensors.index.json", {"weight_map": {"a": "/etc/passwd"}}, "which is no file of it"),
    ("model.safetensors.index.json", {"weight_map": {"a": ".."}}, "which is no file of it"),
    ("model.safetensors.index.json", {"weight_map": {"a": ""}}, "which is no file of it"),
    ("model.safetensors.index.json", {"weight_map": {"a": "b\0"}}, "which is no file of it"),
    ("model.safetensors.index.json", {"weight_map": {"a": 5}}, "is no table of tensors"),
    ("model.safetensors.index.json", {"weight_map": "a"}, "is no table of tensors"),
    ("pytorch_model.bin.index.json", {"weight_map": {"a": "../../etc/passwd"}}, None),  # not read
]


@pytest.mark.parametrize(("name", "value", "words"), VALUES)
def test_value_of_settings(folder: Path, name: str, value: dict[str, Any], words: str | None):
    """Without words, the value is ignored as transformers does."""
    path = folder / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(before | value, default=str))
    if words is None:
        read(folder)
        return
    with pytest.raises(ConfigError, match=words) as error:
        read(folder)
    check_sentence(error, name.removesuffix(".json"))


def entry(**fields: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | fields}


HEADERS: dict[str, tuple[bytes, str]] = {  # a file of safetensors → what the sentence says
    name: (header if isinstance(header, bytes) else json.dumps(header).encode(), words)
    for name, header, words in [
        ("many elements", entry(shape=[10**6, 10**6]), "has 16 bytes"),
        ("more than 2^64 elements", entry(shape=[2**40] * 4), "has 16 bytes"),
        ("an endless dimension", entry(shape=[HUGE, 0], data_offsets=[0, 0]), "has shape"),
        ("no elements, huge", entry(shape=[0, 2**62], data_offsets=[0, 0]), "has shape"),
        ("a million dimensions", entry(shape=[1] * 10**6), "has shape"),
        ("a negative size", entry(shape=[-2, -2]), "has shape"),
        ("a size that is true", entry(shape=[True, 4]), "has shape"),
        ("a size that is a text", entry(shape=["2", 2]), "has shape"),
        ("offsets behind the end", entry(shape=[4, 4], data_offsets=[0, 64]), "cut short"),
        ("offsets that go back", entry(data_offsets=[16, 0]), "has shape"),
        ("offsets before the data", entry(data_offsets=[-8, 8]), "has shape"),
        ("offsets that are no integers", entry(data_offsets=[0.0, 16.0]), "has shape"),
        ("three offsets", entry(data_offsets=[0, 8, 16]), "can't be read"),
        ("overlaps", entry() | {"v": entry()["w"]}, "overlap"),
        ("a gap", entry(shape=[2], data_offsets=[8, 16]), "belong to no tensor"),
        ("a name twice", b'{"w":{},"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', "has 'w' twice"),
        ("a field twice", b'{"w":{"dtype":"F32","shape":[9],"shape":[4],"data_offsets":[0,16]}}', "'shape' twice"),
        ("deep", b"[" * DEEP, "can't be read"),
        ("no object", [], "can't be read"),
        ("no tensor", {"w": 5}, "can't be read"),
        ("no UTF-8", b'{"\xff": 1}', "can't be read"),
    ]
}
FILES_OF_WEIGHTS = {
    name: (struct.pack("<Q", len(header)) + header + bytes(16), words) for name, (header, words) in HEADERS.items()
}
FILES_OF_WEIGHTS |= {
    "header longer than the file": (struct.pack("<Q", 2**63) + b"{}", "its header should have"),
    "nothing but a length": (struct.pack("<Q", 0), "can't be read"),
    "seven bytes": (bytes(7), "a header alone has more"),
}


@pytest.mark.parametrize("case", FILES_OF_WEIGHTS)
def test_damaged_weights(folder: Path, case: str):
    content, words = FILES_OF_WEIGHTS[case]
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadError, match=words) as error:
        read(folder)
    check_sentence(error, "model.safetensors")


def test_header_longer_than_the_format_allows(folder: Path):
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**33))
    os.truncate(path, 2**34)
    with pytest.raises(ModelLoadError, match="the format allows 100000000"):
        read(folder)


# ---- drafters and adapters: the same damage


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_settings_of_a_drafter(tmp_path: Path, kind: str):
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    words = damage(tmp_path / "config.json", kind)
    with pytest.raises(ModelLoadError, match=words) as error:
        Checkpoint(tmp_path, torch.float32)
    check_sentence(error, "config.json")


@pytest.mark.parametrize("case", [*FILES_OF_WEIGHTS, "FIFO", "folder", "endless device"])
def test_damaged_weights_of_a_drafter(tmp_path: Path, case: str):
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    if case in FILES_OF_WEIGHTS:
        path.write_bytes(FILES_OF_WEIGHTS[case][0])
    else:
        damage(path, case)
    with pytest.raises(ModelLoadError, match=r"damaged|can't be read|cut short|not a file") as error:
        Checkpoint(tmp_path, torch.float32)
    check_sentence(error, "model.safetensors")


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_settings_of_an_adapter(tmp_path: Path, kind: str):
    save_file({"w": torch.zeros(2)}, tmp_path / "adapter_model.safetensors")
    words = damage(tmp_path / "adapter_config.json", kind)
    with pytest.raises(ModelLoadError, match=words) as error:
        read_adapter("a", tmp_path, {})
    check_sentence(error, "lora a: ")


@pytest.mark.parametrize("case", [*FILES_OF_WEIGHTS, "FIFO", "folder", "endless device"])
def test_damaged_weights_of_an_adapter(tmp_path: Path, case: str):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    path = tmp_path / "adapter_model.safetensors"
    if case in FILES_OF_WEIGHTS:
        path.write_bytes(FILES_OF_WEIGHTS[case][0])
    else:
        damage(path, case)
    with pytest.raises(ModelLoadError, match=r"damaged|can't be read|cut short|not a file") as error:
        read_adapter("a", tmp_path, {})
    check_sentence(error, "lora a: ")


ADAPTERS: list[tuple[dict[str, Any], str]] = [
    ({"lora_alpha": HUGE}, "must be numbers"),
    ({"lora_alpha": "8"}, "must be numbers"),
    ({"lora_alpha": True}, "must be numbers"),
    ({"alpha_pattern": [1]}, "must be a table"),
    ({"alpha_pattern": {"q": "8"}}, "must be numbers"),
    ({"alpha_pattern": {"(": 8}}, "alpha_pattern has '\\('"),
    ({"alpha_pattern": {"(?i)q": 8}}, "alpha_pattern has '\\(\\?i\\)q', which is no regex"),
    ({"peft_type": ["LORA"]}, "peft_type"),
    ({"r": {}, "unheard_of": [1]}, "unheard_of is not a known setting"),
]


@pytest.mark.parametrize(("value", "words"), ADAPTERS)
def test_value_of_an_adapter(tmp_path: Path, value: dict[str, Any], words: str):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | value))
    save_file({"w": torch.zeros(2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match=words) as error:
        read_adapter("a", tmp_path, {})
    check_sentence(error, "lora a: ")


def test_an_adapters_file_may_change_once_it_is_read(tmp_path: Path):
    """A memory map would show what is written later, and end the process if the file is cut."""
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    names = [f"base_model.model.q.lora_{part}.weight" for part in "AB"]
    path = tmp_path / "adapter_model.safetensors"
    save_file({name: torch.ones(8, 8) for name in names}, path)
    found = read_adapter("a", tmp_path, {"q": LinearShape(8, 8, torch.float32)})
    with path.open("r+b") as file:
        file.seek(-2 * 8 * 8 * 4, os.SEEK_END)
        file.write(bytes(2 * 8 * 8 * 4))
    assert all(bool((tensor == 1).all()) for tensor in found["q"])


def test_pattern_of_an_adapter_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(regex_search.match_first, "__defaults__", (1,))
    patterns = {"alpha_pattern": {"q_proj": 2, "(_+)+!": 3}, "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(patterns))
    module = "base_model.model." + "_" * 60
    tensors = {f"{module}.lora_{part}.weight": torch.zeros(2, 2) for part in "AB"}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match=r"alpha_pattern '\(_\+\)\+!' takes too much time or memory") as error:
        read_adapter("a", tmp_path, {"_" * 60: LinearShape(2, 2, torch.float32)})
    check_sentence(error, "lora a: ")
