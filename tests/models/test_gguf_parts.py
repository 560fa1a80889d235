"""A GGUF file that is converted in parts becomes, byte for byte, what transformers makes of it as a whole."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from safetensors.torch import load_file

from runners.quantized_file import LAYERS, write
from tailrace.models import convert, gguf_parts

CONFIGS = ("config.json", "generation_config.json")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("parts") / "little.gguf")


def weights_of(source: Path, folder: Path, keep: bool) -> dict[str, torch.Tensor]:
    folder.mkdir()
    convert.convert_weights(source, folder, "bfloat16", convert.read_metadata(source), keep)
    files = sorted(folder.glob("*.safetensors"))
    found = [load_file(path) for path in files]
    weights = {name: value for file in found for name, value in file.items()}
    assert len(weights) == sum(map(len, found))
    index = folder / "model.safetensors.index.json"
    assert index.exists() == (len(files) > 1)
    if len(files) > 1:
        assert json.loads(index.read_text())["weight_map"].keys() == weights.keys()
    return weights


@pytest.mark.parametrize("keep", [False, True])
def test_parts_are_the_whole(source, tmp_path, monkeypatch, keep):
    one = weights_of(source, tmp_path / "one", keep)
    monkeypatch.setattr(gguf_parts, "PART", 1)
    parts = weights_of(source, tmp_path / "parts", keep)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) == LAYERS + 2  # the embedding, the last norm
    monkeypatch.setattr(gguf_parts, "convert_in_parts", lambda *_: None)
    whole = weights_of(source, tmp_path / "whole", keep)
    assert any(value.dtype == torch.uint8 for value in whole.values()) == keep
    for made, folder in ((one, "one"), (parts, "parts")):
        assert made.keys() == whole.keys()
        assert all(torch.equal(made[name], value) for name, value in whole.items())
        for name in CONFIGS:
            assert json.loads((tmp_path / folder / name).read_text()) == json.loads(
                (tmp_path / "whole" / name).read_text()
            )


def test_each_tensor_is_in_one_part_and_each_layer_too(source, monkeypatch):
    reader = gguf.GGUFReader(source)
    names = [tensor.name for tensor in reader.tensors]
    for size in (1, 200_000, 600_000, 1 << 40):
        monkeypatch.setattr(gguf_parts, "PART", size)
        parts = [[tensor.name for tensor in part.tensors] for part in gguf_parts.parts_of(reader)]
        assert all(parts)
        sizes = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
        small = [part for part in parts if len({name.rpartition("blk.")[2][:2] for name in part}) > 1]
        assert all(sum(sizes[name] for name in part) <= size for part in small)  # the others are one layer, or tensor
        assert len(parts) == (1 if size == 1 << 40 else LAYERS + 2 if size == 1 else len(parts))
        assert sorted(functools.reduce(operator.iadd, parts, [])) == sorted(names)
        layers = [{name.split(".")[1] for name in part if name.startswith("blk.")} for part in parts]
        assert sum(map(len, layers)) == LAYERS


@pytest.mark.parametrize("fault", ["missing", "another shape"])
def test_what_does_not_fit_is_left_to_transformers(tmp_path, monkeypatch, fault):
    """With nothing left in the folder. What is missing is seen before anything is written."""
    real = GGUFWriter.add_tensor

    def faulty(self, name, tensor, *more, **named):
        if name == f"blk.{LAYERS - 1}.ffn_gate.weight":
            if fault == "missing":
                return
            tensor = tensor[:-32]
        real(self, name, tensor, *more, **named)

    monkeypatch.setattr(GGUFWriter, "add_tensor", faulty)
    source = write(tmp_path / "faulty.gguf", embedding=Type.Q4_0)
    monkeypatch.setattr(gguf_parts, "PART", 1)
    folder = tmp_path / "folder"
    folder.mkdir()
    written, save = [], gguf_parts.save_file
    monkeypatch.setattr(gguf_parts, "save_file", lambda *given: (written.append(1), save(*given)))
    assert gguf_parts.convert_in_parts(source, folder, torch.bfloat16, keep=False) is None
    assert bool(written) == (fault == "another shape")
    assert not list(folder.iterdir())


def test_a_loader_of_another_make_is_not_shown_parts(source, tmp_path, monkeypatch):
    monkeypatch.delattr(gguf_parts.loader, "tqdm")
    real = gguf.GGUFReader
    assert gguf_parts.convert_in_parts(source, tmp_path, torch.bfloat16, keep=True) is None
    assert not list(tmp_path.iterdir())
    assert gguf.GGUFReader is real
