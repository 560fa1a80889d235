"""Folders of somebody who is not trusted: without --trust-remote-code none of their code runs, and nothing that they
name outside of the folder is read.

The tables are the test: a new way is a row.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import dynamic_module_utils
from transformers.integrations import peft
from transformers.models.auto import auto_factory

from runners.quantized_folder import random_weights, write
from tailrace.config import ModelConfig
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models import describe, resolve
from tailrace.models.describe import defaults
from tailrace.models.footprint import weights_bytes
from tailrace.runners.load_transformers import load_model
from tailrace.runners.lora_files import read_adapter
from tailrace.text.tokenizer import Tokenizer

CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "unheard_of"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokens(PreTrainedTokenizerFast):
    pass
def generate(model, *args, **kwargs):
    pass
"""
CLASSES = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("whole") / "model", {})
    for path in folder.glob("model*"):
        path.unlink()
    save_file(random_weights(), folder / "model.safetensors", {"format": "pt"})
    Backend(models.BPE({"a": 0}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return Path(shutil.copytree(whole, tmp_path / "model"))


def change(path: Path, **values: Any) -> None:
    """Set fields of a file of JSON."""
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values))


def start(folder: Path, trusted: bool = False) -> Any:
    """Load the folder as a start does, engine included. Return the model and the tokenizer."""
    config = ModelConfig(model=str(folder), cache_dir=str(folder.parent / "cache"), trust_remote_code=trusted)
    found = resolve(config, progress=False).folder
    describe(found, "m", remote_code=trusted)
    defaults(found)
    weights_bytes(found, 2, packed=True)
    tokenizer = Tokenizer.load(found, trusted)
    return load_model(found, torch.float32, torch.device("cpu"), trusted), tokenizer


class Trap:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


# ---- code


def add_classes(folder: Path) -> None:
    change(folder / "config.json", auto_map=CLASSES)


def add_unknown_type(folder: Path) -> None:
    change(folder / "config.json", auto_map=CLASSES, model_type="unheard_of", architectures=["Model"])


def add_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "vocab.json")  # tokenizer.json needs no class
    (folder / "vocab.json").write_text('{"a": 0}')
    change(folder / "tokenizer_config.json", tokenizer_class="Tokens", auto_map={"AutoTokenizer": [None, "own.Tokens"]})


def add_generation(folder: Path) -> None:
    (folder / "custom_generate").mkdir()
    (folder / "own.py").rename(folder / "custom_generate" / "generate.py")


MODULES = {  # the ways by which transformers finds Python code in a folder
    "classes of a known type": add_classes,
    "classes of an unknown type": add_unknown_type,
    "class of the tokenizer": add_tokenizer,
    "generation": add_generation,
}


def run_module(folder: Path, kind: str, trusted: bool) -> bool:
    """Start the folder with such code. Return whether the code ran."""
    mark = folder.parent / "mark"
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    MODULES[kind](folder)
    with suppress(ConfigError):
        start(folder, trusted)
    return mark.exists()


@pytest.mark.parametrize("kind", MODULES)
def test_code_in_a_folder_does_not_run(folder: Path, kind: str):
    assert not run_module(folder, kind, trusted=False)


@pytest.mark.parametrize("kind", MODULES)
def test_the_same_code_runs_when_it_is_trusted(folder: Path, kind: str):
    """Otherwise the test before would show nothing."""
    assert run_module(folder, kind, trusted=True)


def test_a_folder_that_needs_code_is_one_sentence(folder: Path):
    (folder / "own.py").write_text(CODE.format(mark=str(folder.parent / "mark")))
    add_unknown_type(folder)
    with pytest.raises(ModelLoadError, match=r"needs Python code .* which --trust-remote-code runs$"):
        start(folder)


def write_zip(path: Path, trap: Trap) -> None:
    torch.save({"w": trap}, path)


def write_bare(path: Path, trap: Trap) -> None:
    path.write_bytes(pickle.dumps({"w": trap}, protocol=2))


PICKLES = {"torch's format": write_zip, "a bare pickle": write_bare}


@pytest.mark.parametrize("kind", PICKLES)
def test_code_in_pickles_does_not_run(folder: Path, kind: str):
    mark = folder.parent / "mark"
    (folder / "model.safetensors").unlink()
    PICKLES[kind](folder / "pytorch_model.bin", Trap(mark))
    for read in (start, lambda folder: Checkpoint(folder, torch.float32)):  # a model, a drafter
        with pytest.raises(ModelLoadError, match=r"pickle files hold more than tensors") as error:
            read(folder)
        assert "\n" not in str(error.value)
    (folder / "pytorch_model.bin").rename(folder / "adapter_model.bin")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ModelLoadError):
        read_adapter("a", folder, {})
    assert not mark.exists()
    if kind == "a bare pickle":
        pickle.loads((folder / "adapter_model.bin").read_bytes())
        assert mark.exists()  # so it was a trap


def test_an_adapter_in_the_folder_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Whether `peft` is installed or not."""
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "../outside"}')
    (folder / "adapter_model.bin").write_bytes(b"")
    monkeypatch.setattr(auto_factory, "is_peft_available", lambda: True)
    monkeypatch.setattr(peft, "is_peft_available", lambda: True)
    loaded: list[Any] = []
    monkeypatch.setattr(peft.PeftAdapterMixin, "load_adapter", lambda *args, **kwargs: loaded.append(args))
    model, _ = start(folder)
    assert not loaded
    assert torch.equal(model.model.norm.weight, load_file(folder / "model.safetensors")["model.norm.weight"])


# ---- files outside of the folder

SECRET = "a-line-of-a-secret-file"
NAMED: list[tuple[str, dict[str, Any]]] = [  # a file of the folder, and the fields that name another file
    ("tokenizer_config.json", {"vocab": "{outside}/secret.txt"}),
    ("tokenizer_config.json", {"init_inputs": ["{outside}/secret.txt"]}),
    ("tokenizer_config.json", {"merges": "{outside}/secret.txt"}),
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../outside/tokenizer.1.0.json"]}),
    ("special_tokens_map.json", {"vocab": "{outside}/secret.txt"}),
    ("special_tokens_map.json", {"vocab_file": "{outside}/secret.txt"}),
    ("special_tokens_map.json", {"tokenizer_file": "{outside}/tokenizer.1.0.json"}),
    ("config.json", {"transformers_weights": "../outside/model.safetensors"}),
    ("config.json", {"transformers_weights": "own.safetensors.index.json"}),
    ("model.safetensors.index.json", {"weight_map": {"model.norm.weight": "../outside/model.safetensors"}}),
    ("pytorch_model.bin.index.json", {"weight_map": {"model.norm.weight": "../outside/pytorch_model.bin"}}),
]


IGNORED: list[tuple[str, dict[str, Any]]] = [  # transformers takes the folder's own files
    ("tokenizer_config.json", {"vocab_file": "{outside}/secret.txt"}),
    ("tokenizer_config.json", {"tokenizer_file": "{outside}/tokenizer.1.0.json"}),
]


@pytest.mark.parametrize(("name", "fields"), NAMED, ids=[f"{name}: {next(iter(fields))}" for name, fields in NAMED])
def test_files_outside_of_the_folder_are_not_read(folder: Path, name: str, fields: dict[str, Any]):
    name_outside(folder, name, fields)
    with pytest.raises(ModelLoadError, match=f"{next(iter(fields))}|{name}") as error:
        start(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "fields"), IGNORED)
def test_the_tokenizer_does_without_files_outside_of_the_folder(folder: Path, name: str, fields: dict[str, Any]):
    name_outside(folder, name, fields)
    _, tokenizer = start(folder)
    assert SECRET not in tokenizer.backend.get_vocab()


def name_outside(folder: Path, name: str, fields: dict[str, Any]) -> None:
    """Let a file of the folder name others, which exist outside."""
    outside = folder.parent / "outside"
    tensors = load_file(folder / "model.safetensors")
    make_secrets(outside, tensors)
    if "token" in name:
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n")
        change(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    if name.endswith(".index.json"):
        (folder / "model.safetensors").unlink()
    everything = dict.fromkeys(tensors, "../outside/model.safetensors")
    change(folder / "own.safetensors.index.json", metadata={}, weight_map=everything)
    change(folder / name, **json.loads(json.dumps(fields).replace("{outside}", str(outside))))


def make_secrets(outside: Path, tensors: dict[str, torch.Tensor]) -> None:
    outside.mkdir()
    (outside / "secret.txt").write_text(f"[UNK]\n[PAD]\n{SECRET}\n")
    Backend(models.BPE({SECRET: 0}, [])).save(str(outside / "tokenizer.1.0.json"))
    tensors["model.norm.weight"].fill_(42)
    save_file(tensors, outside / "model.safetensors", metadata={"format": "pt"})
    torch.save(tensors, outside / "pytorch_model.bin")
