"""Folders whose files don't fit their config.json are refused before anything is loaded."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from runners.quantized_folder import random_weights, write
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import resolve
from tailrace.models.check_weights import check_against_config
from tailrace.models.footprint import weight_files
from tailrace.runners.load_transformers import load_transformers

MATRIX = "model.layers.0.mlp.up_proj.weight"


def test_a_folder_of_floats_fits(tmp_path: Path):
    check_against_config(write(tmp_path, random_weights()))


def test_more_layers_than_tensors(tmp_path: Path):
    folder = write(tmp_path, random_weights(), num_hidden_layers=10**6)
    with pytest.raises(ModelLoadError, match="states 1000000 layers, and its files have 20 tensors"):
        resolve(ModelConfig(model=str(folder)), progress=False)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_matrices_that_are_no_floats_need_a_word_of_how_they_become_some(tmp_path: Path, dtype: torch.dtype):
    tensors = random_weights() | {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}
    tensors[MATRIX] = tensors[MATRIX].to(dtype)
    with pytest.raises(ModelLoadError, match=f"tensor {MATRIX} is .*no quantization_config"):
        check_against_config(write(tmp_path, tensors))
    check_against_config(write(tmp_path, tensors, quantization_config={"quant_method": "fp8"}))


def test_tensors_that_share_bytes(tmp_path: Path):
    folder = write(tmp_path, random_weights())
    path = folder / "model-00001-of-00002.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    first, second, *_ = (name for name in header if name.endswith("layernorm.weight"))
    header[second]["data_offsets"] = header[first]["data_offsets"]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(ModelLoadError, match=r"is damaged: tensors .*layernorm.weight and .*layernorm.weight overlap"):
        check_against_config(folder)


@pytest.mark.parametrize("layers", [0, -1, 2.0, "2", [2], True], ids=str)
def test_a_number_of_layers_that_is_none(tmp_path: Path, layers: object):
    with pytest.raises(ModelLoadError, match="num_hidden_layers must be a whole number from 1, got "):
        check_against_config(write(tmp_path, random_weights(), num_hidden_layers=layers))


@pytest.mark.parametrize("value", [0, -5, 2.5, "x", True, 10**15], ids=str)
@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings"])
def test_a_size_that_no_model_has(tmp_path: Path, field: str, value: object):
    said = "be at most 2147483647" if value == 10**15 else "be a whole number from 1"
    with pytest.raises(ModelLoadError, match=f"config.json: {field} must {said}, got {value}"):
        resolve(ModelConfig(model=str(write(tmp_path, random_weights(), **{field: value}))), progress=False)


def test_a_size_for_each_layer_is_left_to_the_model(tmp_path: Path):
    check_against_config(write(tmp_path, random_weights(), num_key_value_heads=[2, 2]))


def test_layers_that_are_not_used_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    check_against_config(write(tmp_path / "a", random_weights()))
    check_against_config(write(tmp_path / "b", random_weights(), num_hidden_layers=1, num_nextn_predict_layers=1))
    assert not caplog.text
    check_against_config(write(tmp_path / "c", random_weights(), num_hidden_layers=1))
    assert "states 1 layers, and its files have 2: the others are not used" in caplog.text


def damaged(path: Path, change: Callable[[dict[str, Any], str], str]) -> None:
    """Write the file's header anew. change: (header, a tensor of it) → its text."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    text = change(header, next(name for name in header if name != "__metadata__")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def without(header: dict[str, Any], name: str) -> str:
    return json.dumps({key: value for key, value in header.items() if key != name})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without, r"is damaged: \d+ bytes of it belong to no tensor"),
        (lambda header, name: json.dumps(header | {"__metadata__": {"format": float("nan")}}), "has NaN, which is no"),
        (lambda header, name: '{"a":' * 100_000 + "1" + "}" * 100_000, "can't be read: .*recursion"),
    ],
    ids=["a hole", "NaN", "deep"],
)
def test_damaged_headers(tmp_path: Path, change: Callable[[dict[str, Any], str], str], said: str):
    folder = write(tmp_path, random_weights())
    damaged(folder / "model-00001-of-00002.safetensors", change)
    with pytest.raises(ModelLoadError, match=said):
        check_against_config(folder)


def test_the_files_that_transformers_reads_are_looked_at(tmp_path: Path):
    folder = write(tmp_path, random_weights())
    save_file(random_weights(), folder / "model.safetensors")
    assert weight_files(folder) == [folder / "model.safetensors"]
    (folder / "model.safetensors").unlink()
    for table in ([], float("nan"), {"a": 1}, {}):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
        with pytest.raises(ModelLoadError, match="is no table of tensors and their files"):
            weight_files(folder)


def test_float8_without_scales_is_a_float(tmp_path: Path):
    tensors = random_weights()
    tensors[MATRIX] = tensors[MATRIX].to(torch.float8_e4m3fn)
    check_against_config(write(tmp_path, tensors))


def test_another_methods_file_is_named(tmp_path: Path):
    tensors = random_weights()
    tensors[MATRIX] = tensors[MATRIX].to(torch.int32)
    folder = write(tmp_path, tensors)
    (folder / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"; hf_quant_config.json is not read$"):
        check_against_config(folder)


def test_safetensors_beside_pytorchs_own_files_are_none_of_its_weights(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 32}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    save_file({"value.weight": torch.ones(2, 2)}, tmp_path / "value_head.safetensors")
    check_against_config(tmp_path)


METHODS = ("gptq", "awq", "compressed-tensors", "fp8", "mxfp4", "bitsandbytes", "unheard-of", None)


@pytest.mark.parametrize("method", METHODS)
def test_plain_floats_are_loaded_as_such_whatever_config_says(tmp_path: Path, method: str | None, caplog):
    settings = {"bits": 4} | ({"quant_method": method} if method else {})
    folder = write(tmp_path, random_weights(), quantization_config=settings)
    (folder / "tokenizer.json").write_text("{}")
    assert resolve(ModelConfig(model=str(folder)), progress=False).folder == folder
    said = [line for line in caplog.messages if "its weights are plain floats: it is ignored" in line]
    assert len(said) == 1
    assert f"has a quantization_config{f' ({method})' if method else ''}, and" in said[0]
    runner = load_transformers(ModelConfig(), folder, block_size=16)
    assert torch.equal(runner.paged.model.get_input_embeddings().weight, random_weights()["model.embed_tokens.weight"])


def test_older_word_of_gptq_beside_plain_floats_is_ignored(tmp_path: Path, caplog):
    folder = write(tmp_path, random_weights())
    (folder / "tokenizer.json").write_text("{}")
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4}))
    assert resolve(ModelConfig(model=str(folder)), progress=False).folder == folder
    assert "there is a quantize_config.json, and its weights are plain floats: it is ignored" in caplog.text


def test_quantized_weights_are_not_called_plain(tmp_path: Path, caplog):
    tensors = random_weights()
    tensors[MATRIX] = tensors[MATRIX].to(torch.float8_e4m3fn)
    tensors[f"{MATRIX}_scale"] = torch.ones(1)
    check_against_config(write(tmp_path, tensors, quantization_config={"quant_method": "fp8"}))
    assert not caplog.text
