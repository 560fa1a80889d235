"""A GGUF file that is converted in parts becomes, byte for byte, what transformers makes of it as a whole."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, dequantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gguf_judge.models import make_model
from models import gguf_writer
from runners.quantized_file import LAYERS, write
from tailrace.errors import ModelLoadError
from tailrace.models import convert, gguf_parts
from tailrace.models.gguf_fields import Fields


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("parts") / "little.gguf")


def weights_of(source: Path, folder: Path, keep: bool) -> dict[str, torch.Tensor]:
    folder.mkdir()
    convert.convert_weights(Fields(source), folder, "bfloat16", keep)
    files = sorted(folder.glob("*.safetensors"))
    found = [load_file(path) for path in files]
    weights = {name: value for file in found for name, value in file.items()}
    assert len(weights) == sum(map(len, found))
    index = folder / "model.safetensors.index.json"
    assert index.exists() == (len(files) > 1)
    if len(files) > 1:
        assert json.loads(index.read_text())["weight_map"].keys() == weights.keys()
    return weights


def test_weights_are_those_of_transformers_reader(source, tmp_path, monkeypatch):
    one = weights_of(source, tmp_path / "one", keep=False)
    monkeypatch.setattr(gguf_parts, "PART", 1)
    parts = weights_of(source, tmp_path / "parts", keep=False)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) == LAYERS + 2  # the embedding, the last norm
    theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    names = set(theirs.state_dict()) - {"lm_head.weight"}  # tied
    for made in (one, parts):
        assert made.keys() == names
        assert all(torch.equal(made[name], theirs.state_dict()[name]) for name in names)


def test_blocks_are_those_of_the_file_with_rows_in_the_models_order(source, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_parts, "PART", 1)
    kept, plain = (weights_of(source, tmp_path / str(keep), keep) for keep in (True, False))
    types = json.loads((tmp_path / "True" / "config.json").read_text())["quantization_config"]["types"]
    assert types.keys() == {name for name, value in kept.items() if value.dtype == torch.uint8}
    assert len(types) == 7 * LAYERS + 1
    for name, number in types.items():
        values = dequantize(kept[name].numpy(), Type(number))
        assert torch.equal(torch.from_numpy(values).to(torch.bfloat16), plain[name]), name


def test_each_parameter_is_in_one_part_and_each_layer_too(monkeypatch):
    sizes = {"embed": 1000, "norm": 1} | {f"model.layers.{n}.{name}": 100 for n in range(5) for name in "abc"}
    recipes = dict.fromkeys(sizes)
    for size in (1, 350, 700, 1 << 40):
        monkeypatch.setattr(gguf_parts, "PART", size)
        parts = gguf_parts.split_parts(recipes, sizes)
        assert all(parts)
        small = [part for part in parts if len({name.rpartition("layers.")[2][:2] for name in part}) > 1]
        assert all(sum(sizes[name] for name in part) <= size for part in small)  # the others are one layer, or tensor
        assert len(parts) == (1 if size == 1 << 40 else 7 if size == 1 else len(parts))
        assert sorted(functools.reduce(operator.iadd, parts, [])) == sorted(sizes)
        layers = [{name.split(".")[2] for name in part if "layers" in name} for part in parts]
        assert sum(map(len, layers)) == 5


@pytest.mark.parametrize("keep", [False, True])
def test_another_shape_is_a_sentence(tmp_path, monkeypatch, keep):
    real = GGUFWriter.add_tensor

    def faulty(self, name, tensor, *more, **named):
        real(self, name, tensor[:-32] if name == f"blk.{LAYERS - 1}.ffn_gate.weight" else tensor, *more, **named)

    monkeypatch.setattr(GGUFWriter, "add_tensor", faulty)
    source = write(tmp_path / "faulty.gguf", embedding=Type.Q4_0)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelLoadError, match=rf"the tensor blk\.{LAYERS - 1}\.ffn_gate\.weight (has another|makes)"):
        gguf_parts.convert_in_parts(Fields(source), tmp_path / "folder", torch.bfloat16, keep)


def test_a_tensor_without_a_place_is_refused(tmp_path, monkeypatch):
    """Scales of weights, gates and further norms change the arithmetic, so none may be left out."""
    real = GGUFWriter.write_header_to_file

    def more(self):
        self.add_tensor("blk.1.attn_q.scale", torch.ones(1).numpy())
        real(self)

    monkeypatch.setattr(GGUFWriter, "write_header_to_file", more)
    source = write(tmp_path / "more.gguf")
    assert "blk.1.attn_q.scale" in {tensor.name for tensor in gguf.GGUFReader(source).tensors}
    with pytest.raises(ModelLoadError, match=r"the tensor blk\.1\.attn_q\.scale has no place in a model of the arch"):
        gguf_parts.convert_in_parts(Fields(source), tmp_path, torch.bfloat16, keep=False)


ROW = torch.ones(32).numpy()


def write_layers(name: str, path: Path, monkeypatch, blocks: int = 0, tensors: tuple[str, ...] = (), **more) -> Path:
    """A tiny model's file that states so many more layers, with further tensors."""
    add, rope = GGUFWriter.add_block_count, gguf_writer.write_rope

    def write_rope(writer, *rest):
        rope(writer, *rest)
        for tensor in tensors:
            writer.add_tensor(tensor, ROW)

    with monkeypatch.context() as patch:
        patch.setattr(GGUFWriter, "add_block_count", lambda self, count: add(self, count + blocks))
        patch.setattr(gguf_writer, "write_rope", write_rope)
        return gguf_writer.write_model(make_model(name), path, more=more)


@pytest.mark.parametrize(
    ("name", "faults", "reason"),
    [
        ("llama", {"blocks": -1}, r"the tensor blk\.3\.\S+ has no place"),
        ("llama", {"tensors": ("blk.7.attn_q.weight",)}, r"the tensor blk\.7\.attn_q\.weight has no place"),
        ("llama", {"nextn_predict_layers": 1}, r"the field llama\.nextn_predict_layers is 1"),
        ("llama", {"tensors": ("blk.0.attn_rot_embd.weight",)}, r"the tensor blk\.0\.attn_rot_embd\.weight has no pl"),
        ("llama", {"tensors": ("blk.0.rope_freqs.weight",)}, r"the tensor blk\.0\.rope_freqs\.weight has no place"),
        ("glm4moe", {"nextn_predict_layers": 4}, r"the field glm4moe\.nextn_predict_layers is 4"),
        ("glm4moe", {"blocks": 1, "nextn_predict_layers": 1, "tensors": ("blk.5.a.weight",)}, r"blk\.5\.a\.weight has"),
    ],
)
def test_layers_and_frequencies_that_nobody_reads_are_refused(name, faults, reason, tmp_path, monkeypatch):
    path = write_layers(name, tmp_path / "a.gguf", monkeypatch, **faults)
    with pytest.raises(ModelLoadError, match=reason):
        gguf_parts.convert_in_parts(Fields(path), tmp_path, torch.float32, keep=False)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path, monkeypatch):
    more = {"blocks": 1, "nextn_predict_layers": 1, "tensors": ("blk.4.nextn.eh_proj.weight",)}
    path = write_layers("glm4moe", tmp_path / "a.gguf", monkeypatch, **more)
    model = gguf_parts.convert_in_parts(Fields(path), tmp_path, torch.float32, keep=False)
    assert model.config.num_hidden_layers == 4


def test_blocks_of_signs_are_a_scale_and_a_bit_for_each_value():
    """As llama.cpp's dequantize_row_q1_0: the lowest bit of the first byte is the first value's."""
    scales, signs = np.array([0.5, 2.0], np.float16), np.zeros((2, 16), np.uint8)
    signs[0, 0], signs[1, 15] = 0b101, 0b10000000
    data = np.concatenate([scales[:, None].view(np.uint8), signs], 1).reshape(1, -1)
    values = gguf_parts.read_signs(data)
    assert values.shape == (1, 256)
    assert values[0, :4].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert (values[0, 128:255] == -2.0).all()
    assert values[0, 255] == 2.0
