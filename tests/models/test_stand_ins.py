"""What stands in the place of a model's file is called by its name, with what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from runners.quantized_folder import random_weights, write
from tailrace.base import stand_ins
from tailrace.base.stand_ins import read_file, refuse_stand_in
from tailrace.config import ModelConfig
from tailrace.drafting.checkpoint import read_tensors
from tailrace.errors import ModelLoadError
from tailrace.models import resolve

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"
STAND_INS = {
    "pointer": (POINTER, "is a Git LFS pointer, not the file itself; run git lfs pull"),
    "annex": (
        "/annex/objects/SHA256E-s12345--4d7a214614ab.safetensors\n",
        "is a git-annex pointer, .*; run git",
    ),
    "page": (
        '<!DOCTYPE html>\n<html class=""><head><title>401</title></head></html>',
        "is a web page, .*; download",
    ),
    "page behind a comment": ("\n<!-- a mirror's -->\n<HTML>\n<body>Not found</body></HTML>", "is a web page, "),
    "error of a store": ('<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', "is a web page, "),
    "empty": ("", "is empty; download it again"),
    "line ends": ("\n\n", "is empty; download it again"),
    "message": ("Entry not found", "is a message, not the file itself: Entry not found; download it again"),
    "message in JSON": (
        '{"error":"Repository not found"}',
        'is a message, .*: {"error":"Repository not found"}',
    ),
}
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "model-00002-of-00002.safetensors",
)


def folder_of(tmp_path: Path) -> Path:
    folder = write(tmp_path / "model", random_weights())
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def load(path: Path) -> None:
    resolve(ModelConfig(model=str(path), cache_dir=str(path.parent / "cache")), progress=False)


@pytest.mark.few(20)
@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize("name", FILES)
def test_stand_in_for_a_file_of_a_folder(name, kind, tmp_path):
    folder = folder_of(tmp_path)
    load(folder)
    text, words = STAND_INS[kind]
    (folder / name).write_text(text)
    with pytest.raises(ModelLoadError, match=f"/{name} {words}"):
        load(folder)


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "model.gguf"])
def test_stand_in_for_a_file_that_is_the_whole_model(name, kind, tmp_path):
    folder = folder_of(tmp_path)
    for path in folder.glob("model*"):
        path.unlink()
    text, words = STAND_INS[kind]
    (folder / name).write_text(text)
    with pytest.raises(ModelLoadError, match=f"/{name} {words}"):
        load(folder / name if name.endswith("gguf") else folder)
    if not name.endswith("gguf"):  # a drafter's weights
        with pytest.raises(ModelLoadError, match=f"/{name} {words}"):
            read_tensors(folder, lambda _: True)


def test_shortened_checkpoint(tmp_path):
    folder = folder_of(tmp_path)
    for path in folder.glob("model*"):
        path.unlink()
    path = folder / "pytorch_model.bin"
    torch.save(random_weights(), path)
    load(folder)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is cut short; download it again"):
        load(folder)


def test_pointer_that_is_not_loaded_does_no_harm(tmp_path):
    """Such as of files that `git lfs pull --include` left out."""
    folder = folder_of(tmp_path)
    for name in ("consolidated.safetensors", "pytorch_model.bin", "onnx.json"):
        (folder / name).write_text(POINTER)
    (folder / "pytorch_model.bin").unlink()
    load(folder)


def test_templates_may_be_any_text(tmp_path):
    for text in ("", "Entry not found", "{{ messages }}"):
        (tmp_path / "chat_template.jinja").write_text(text)
        refuse_stand_in(tmp_path / "chat_template.jinja")
    (tmp_path / "chat_template.jinja").write_text(POINTER)
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja is a Git LFS pointer"):
        refuse_stand_in(tmp_path / "chat_template.jinja")


@pytest.mark.parametrize("text", [" {}", "[]", json.dumps({"errors": 1}), '"text"', "3", "null", '\ufeff{"a": 1}'])
def test_what_is_json_passes(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    refuse_stand_in(tmp_path / "config.json")


def test_missing_file_passes(tmp_path):
    refuse_stand_in(tmp_path / "config.json")


def test_a_fifo_that_takes_the_files_place_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After the first look at the file."""
    path = tmp_path / "config.json"
    os.mkfifo(path)
    looks = iter([os.stat(tmp_path.parent / __file__)])  # a file's
    stat = os.stat
    monkeypatch.setattr(stand_ins.os, "stat", lambda *args, **kwargs: next(looks, None) or stat(*args, **kwargs))
    with pytest.raises(ModelLoadError, match="is a FIFO, not a file"):
        read_file(path, 100)


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/pagemap"])
def test_a_file_of_the_system_is_no_file_of_a_model(path: str, tmp_path: Path):
    """A link to the first would make the server's keys a part of each prompt. The second has terabytes."""
    link = tmp_path / "chat_template.jinja"
    link.symlink_to(path)
    with pytest.raises(ModelLoadError, match="another number of bytes than 0"):
        read_file(link, 1 << 20)
