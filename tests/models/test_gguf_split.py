"""A model in several GGUF files is read as one, whichever of them is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from models.test_gguf import tiny_gguf
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import resolve
from tailrace.models.convert import convert_weights
from tailrace.models.gguf import converted_folder, list_parts, name_model
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_layout import check_layout


def write_parts(folder: Path, **options: Any) -> list[Path]:
    """Write the tiny model in parts of four tensors."""
    tiny_gguf(folder / "tiny.gguf", **({"split_max_tensors": 4} | options))
    return sorted(folder.glob("tiny-*.gguf"))


def load_converted(path: Path, folder: Path) -> dict[str, bytes]:
    """The bytes of the converted weights."""
    folder.mkdir()
    check_layout(path)
    convert_weights(Fields(path), folder, "float32", keep=False)
    return {name: value.numpy().tobytes() for name, value in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("small_first_shard", [False, True])
def test_several_files_are_one_model(tmp_path, small_first_shard):
    """small_first_shard: the first file has the fields alone."""
    parts = write_parts(tmp_path, small_first_shard=small_first_shard)
    assert len(parts) == 3 + small_first_shard
    whole = load_converted(tiny_gguf(tmp_path / "whole.gguf"), tmp_path / "a")
    assert len(whole) == 11
    for number, part in enumerate(parts):
        assert list_parts(part) == parts
        assert name_model(part) == "tiny"
        assert load_converted(part, tmp_path / f"{number}") == whole


def test_links_to_parts_keep_their_names(tmp_path):
    """A cache of Hugging Face's hub has links to files without the parts' numbers."""
    (tmp_path / "blobs").mkdir()
    for place, part in enumerate(write_parts(tmp_path)):
        part.rename(tmp_path / "blobs" / f"{place}")
        part.symlink_to(tmp_path / "blobs" / f"{place}")
    named = tmp_path / "tiny-00002-of-00003.gguf"
    found = resolve(ModelConfig(model=str(named), cache_dir=str(tmp_path / "cache")))
    assert found.name == "tiny"
    assert (found.folder / "model.safetensors").exists()


@pytest.mark.long
def test_any_part_may_be_named(tmp_path):
    parts = write_parts(tmp_path)
    found = [resolve(ModelConfig(model=str(part), cache_dir=str(tmp_path / "cache"))) for part in parts]
    assert {model.name for model in found} == {"tiny"}
    assert len({model.folder for model in found}) == 1


def test_another_part_is_another_model(tmp_path):
    parts = write_parts(tmp_path)
    keys = [converted_folder(part, tmp_path, ("float32", "dequantized"), "tiny") for part in parts]
    assert len({*keys}) == 1
    raw = parts[1].read_bytes()
    parts[1].write_bytes(raw[:-4] + bytes(4))
    assert converted_folder(parts[0], tmp_path, ("float32", "dequantized"), "tiny") != keys[0]


def exchange(parts: list[Path]) -> None:
    first, second = parts[0].read_bytes(), parts[1].read_bytes()
    parts[0].write_bytes(second)
    parts[1].write_bytes(first)


def rename_to_two(parts: list[Path]) -> None:
    for part, name in zip(parts, ("tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"), strict=False):
        part.rename(part.with_name(name))
    parts[0] = parts[0].with_name("tiny-00001-of-00002.gguf")


def take_name_away(parts: list[Path]) -> None:
    parts[0] = parts[0].rename(parts[0].with_name("plain.gguf"))


def repeat_a_part(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])


def take_whole_files(parts: list[Path]) -> None:
    for part in parts:
        tiny_gguf(part)


def take_another_models_part(parts: list[Path]) -> None:
    other = parts[0].parent / "other"
    other.mkdir()
    shutil.copy(write_parts(other, left_out=("blk.0.ffn_norm.weight",))[2], parts[2])


def cut_a_part(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-64])


def remove_a_part(parts: list[Path]) -> None:
    parts[1].unlink()


def make_a_web_page(parts: list[Path]) -> None:
    parts[1].write_text("<!DOCTYPE html><html>not found</html>")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (exchange, r"tiny-00001-of-00003\.gguf: its field split\.no is 1, and by its name it is 0"),
        (rename_to_two, r"tiny-00001-of-00002\.gguf: its field split\.count is 3, and by its name it is 2"),
        (take_name_away, r"plain\.gguf: its field split\.count is 3, and by its name it is 1"),
        (repeat_a_part, r"tiny-00003-of-00003\.gguf: its field split\.no is 1, and by its name it is 2"),
        (take_whole_files, r"the tensor .* is in two parts"),
        (take_another_models_part, r"the parts have 10 tensors together, and split\.tensors\.count is 11"),
        (cut_a_part, r"tiny-00002-of-00003\.gguf: the file ends at byte .*: it is cut short"),
        (remove_a_part, r"tiny-00002-of-00003\.gguf not found beside it: put all parts into one folder"),
        (make_a_web_page, r"tiny-00002-of-00003\.gguf"),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path, damage: Callable[[list[Path]], None], said: str):
    parts = write_parts(tmp_path)
    damage(parts)
    with pytest.raises(ModelLoadError, match=said):
        resolve(ModelConfig(model=str(parts[0]), cache_dir=str(tmp_path / "cache")))
