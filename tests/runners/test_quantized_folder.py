"""Folders in Hugging Face's layout that are quantized when they are first loaded."""

from __future__ import annotations

import json
import logging
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from gguf.quants import quantize
from safetensors import safe_open

from engine.harness import Harness
from runners.quantized_file import packs_of
from runners.quantized_folder import LAYERS, LINEAR, VOCAB, WIDTH, Tensors, random_weights, write
from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models import convert_folder, resolve
from tailrace.models import folder as conversions
from tailrace.models.child import run_child
from tailrace.models.footprint import weights_bytes
from tailrace.models.store import MARKER
from tailrace.models.tensors import index_tensors
from tailrace.runners import load_runner
from tailrace.runners.load_checks import admit_blocks
from tailrace.runners.load_transformers import load_transformers
from tailrace.runners.quantized import QuantizedEmbedding, QuantizedLinear
from tailrace.runners.transformers import TransformersRunner

PROMPTS = [[5, 9, 33, 7, 100, 2] * 5, [(7 * i * i + 3) % VOCAB for i in range(70)], [77, 3]]


@pytest.fixture(scope="module", autouse=True)
def in_this_process():
    """Conversions are made here: a process of its own takes seconds to import torch. The long test of the second start
    makes one."""
    patch = pytest.MonkeyPatch()
    patch.setattr(conversions, "run_child", convert_here)
    yield patch
    patch.undo()


def convert_here(module: str, arguments: list[str], *_: Any) -> str | None:
    source, folder, dtype, weights, remote_code = arguments
    try:
        convert_folder.fill_folder(Path(source), Path(folder), dtype, weights, remote_code == "1")
    except ModelLoadError as error:
        return str(error)
    return None


def config_for(folder: Path, cache: Path, **fields: Any) -> ModelConfig:
    return ModelConfig(model=str(folder), cache_dir=str(cache), device="cpu", threads=1, **fields)


def loaded(config: ModelConfig) -> tuple[Path, TransformersRunner]:
    folder = resolve(config, progress=False).folder
    runner = load_transformers(config, folder, block_size=16)
    runner.allocate(64)
    return folder, runner


def rounded(tensors: Tensors, kind: GGMLQuantizationType) -> Tensors:
    """The same checkpoint with its matrices rounded to a type's values, in float32."""
    out = {name: tensor.float() for name, tensor in tensors.items()}
    for name, tensor in out.items():
        if tensor.dim() == 2:
            out[name] = torch.from_numpy(dequantize(quantize(tensor.numpy(), kind), kind))
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("plain") / "tiny", random_weights())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def q4_1(folder: Path, cache: Path) -> tuple[Path, TransformersRunner]:
    return loaded(config_for(folder, cache, quantize="q4_1", dtype="float32"))


def test_logits_are_those_of_the_rounded_weights(q4_1: tuple[Path, TransformersRunner], folder: Path, tmp_path: Path):
    """The logits agree, apart from rounding activations to eight bits. Negative control: another type's weights."""
    ours = q4_1[1].paged.run_trial()
    tensors = random_weights()
    errors = {}
    for kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_0):
        plain = write(tmp_path / kind.name, rounded(tensors, kind))
        theirs = loaded(config_for(plain, tmp_path, dtype="float32"))[1].paged.run_trial()
        errors[kind.name] = float((ours - theirs).norm() / theirs.norm())
    assert 0 < errors["Q4_1"] < 0.03 < errors["Q4_0"], errors


def test_a_cache_inside_the_folder_is_not_copied(folder: Path, tmp_path: Path):
    inside = Path(shutil.copytree(folder, tmp_path / "model"))
    (inside / "sub").mkdir()
    made, _ = loaded(config_for(inside, inside / "sub" / "cache", quantize="q4_1", dtype="float32"))
    assert (made / "config.json").exists()
    assert not (made / "sub").exists()


def test_what_became_of_the_tensors(q4_1: tuple[Path, TransformersRunner], caplog: pytest.LogCaptureFixture):
    from transformers import AutoConfig

    folder, runner = q4_1
    model = runner.paged.model
    assert isinstance(model.get_input_embeddings(), QuantizedEmbedding)
    assert isinstance(model.get_output_embeddings(), QuantizedLinear)
    assert model.get_output_embeddings().packed is model.get_input_embeddings().packed
    with caplog.at_level(logging.INFO):
        admit_blocks(AutoConfig.from_pretrained(folder), torch.device("cpu"))
    assert f"{len(LINEAR) + 1} tensors became Q4_1" in caplog.text
    with safe_open(folder / "model.safetensors", "pt") as file:
        raw = file.get_tensor("model.layers.1.mlp.down_proj.weight").numpy()
        norm = file.get_tensor("model.norm.weight")
    expected = quantize(
        random_weights()["model.layers.1.mlp.down_proj.weight"].float().numpy(), GGMLQuantizationType.Q4_1
    )
    assert (raw == expected).all()
    assert torch.equal(norm, random_weights()["model.norm.weight"])


def test_the_footprint_is_what_is_held(q4_1: tuple[Path, TransformersRunner]):
    folder, runner = q4_1
    packs = {id(pack): pack for pack in packs_of(runner.paged.model)}
    held = sum(pack.data.numel() for pack in packs.values()) + WIDTH * 4 * (2 * LAYERS + 1)
    assert abs(weights_bytes(folder, 4, packed=True) - held) < WIDTH * 4 * 20


def test_every_schedule_gives_the_same_tokens(q4_1: tuple[Path, TransformersRunner], folder: Path, cache: Path):
    runner = load_runner(config_for(folder, cache, quantize="q4_1", dtype="float32"), q4_1[0], block_size=16)

    def generate(prompts: list[list[int]], **options: Any) -> list[list[int]]:
        harness = Harness(runner, num_blocks=64, **options)
        for i, prompt in enumerate(prompts):
            harness.submit(str(i), prompt, max_tokens=12, ignore_eos=True)
        stories = harness.run()
        return [stories[str(i), 0, 0].tokens for i in range(len(prompts))]

    alone = [generate([prompt], max_num_seqs=1, max_num_batched_tokens=512)[0] for prompt in PROMPTS]
    assert len({token for tokens in alone for token in tokens}) > 8
    assert generate(PROMPTS, max_num_batched_tokens=23) == alone


@pytest.mark.parametrize(
    "convert", [convert_here, pytest.param(run_child, marks=pytest.mark.long)], ids=["here", "in a process"]
)
def test_the_second_start_reads_the_cache(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, convert: Any):
    monkeypatch.setattr(conversions, "run_child", convert)
    (folder / MARKER).write_text("{}")  # the source may itself be a converted folder
    config = config_for(folder, cache, quantize="q8_0", name="it")
    first = resolve(config, progress=False)
    assert first.name == "it"
    assert not (first.folder / "model.safetensors.index.json").exists()
    assert (first.folder / "tokenizer.json").read_text() == "{}"
    monkeypatch.setattr(conversions, "run_child", lambda *_: pytest.fail("converted again"))
    assert resolve(config, progress=False).folder == first.folder
    other = conversions.target_folder(folder, config_for(folder, cache, quantize="q4_0"), "tiny")
    assert other != first.folder


def test_a_tied_matrix_that_is_stored_twice_is_kept_once(cache: Path, tmp_path: Path):
    tensors = random_weights()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    folder, runner = loaded(config_for(write(tmp_path / "twice", tensors), cache, quantize="q4_0"))
    assert "lm_head.weight" not in index_tensors(folder / "model.safetensors")
    only = {name: tensor for name, tensor in tensors.items() if name != "model.embed_tokens.weight"}
    _, other = loaded(config_for(write(tmp_path / "only", only), cache, quantize="q4_0"))
    assert torch.equal(other.paged.run_trial(), runner.paged.run_trial())
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0).contiguous()
    folder, runner = loaded(config_for(write(tmp_path / "untied", tensors), cache, quantize="q4_0"))
    ids = torch.tensor([3, 200])
    embedding, head = (
        module.packed for module in (runner.paged.model.get_input_embeddings(), runner.paged.model.lm_head)
    )
    from tailrace import kernels

    rows = kernels.quantized_rows(embedding, ids, torch.float32)
    assert torch.equal(kernels.quantized_rows(head, VOCAB - 1 - ids, torch.float32), rows)


def test_rows_that_are_no_whole_blocks_stay_floats(cache: Path, tmp_path: Path):
    tensors = random_weights()
    for name in LINEAR:
        if name.endswith(("gate_proj", "up_proj")):
            tensors[f"{name}.weight"] = tensors[f"{name}.weight"][:500].contiguous()
        if name.endswith("down_proj"):
            tensors[f"{name}.weight"] = tensors[f"{name}.weight"][:, :500].contiguous()
    folder, _ = loaded(config_for(write(tmp_path / "odd", tensors, intermediate_size=500), cache, quantize="q5_1"))
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert settings["left"] == {"of rows of 500 stay floats": LAYERS}
    assert len(settings["types"]) == len(LINEAR) + 1 - LAYERS


@pytest.mark.parametrize(
    ("changes", "fields", "message"),
    [
        ({}, {"weights": "quantized"}, "keeps codes as they are in a file .*, and tiny has floats; --quantize q8_0"),
        ({"quantization_config": {"quant_method": "fp8"}}, {"quantize": "q8_0"}, "tiny is quantized by fp8"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, changes: Any, fields: Any, message: str):
    scales = {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)} if changes else {}
    folder = write(tmp_path / "tiny", random_weights() | scales, **changes)
    with pytest.raises(ModelLoadError, match=message):
        resolve(config_for(folder, tmp_path, **fields), progress=False)


def test_a_gpu_and_a_gguf_file_are_refused(tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"a\.gguf is a GGUF file, whose blocks --weights quantized keeps"):
        resolve(config_for(tmp_path / "a.gguf", tmp_path, quantize="q4_0"), progress=False)
    with pytest.raises(ConfigError, match="kernels on the CPU only"):
        resolve(ModelConfig(model=str(tmp_path), quantize="q4_0", device="cuda"), progress=False)


def damage(file: Path, how: str) -> None:
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
        return
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    name = "model.layers.0.self_attn.q_proj.weight"
    if how == "shape":
        header[name]["shape"] = [WIDTH, WIDTH + 1]
    text = json.dumps(header).encode()
    data = bytearray(raw[8 + length :])
    if how == "nan":
        data[header[name]["data_offsets"][0] + 1] = 0x7F
        data[header[name]["data_offsets"][0]] = 0xFF
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", r"is cut short: tensor model\.[\w.]+ ends at byte \d+ of \d+"),
        ("shape", r"tensor model\.layers\.0\.self_attn\.q_proj\.weight of BF16 \(256, 257\) has 131072 bytes"),
        ("nan", r"tensor model\.layers\.0\.self_attn\.q_proj\.weight has a weight that is not finite"),
    ],
)
def test_damaged_files_are_a_sentence(tmp_path: Path, how: str, message: str):
    folder = write(tmp_path / "tiny", random_weights())
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    damage(folder / index["model.layers.0.self_attn.q_proj.weight"], how)
    with pytest.raises(ModelLoadError, match=message):
        resolve(config_for(folder, tmp_path, quantize="q8_0"), progress=False)
    assert not list((tmp_path / "models").glob("*/"))


def test_what_does_not_fit_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(folder: Path, message: str) -> None:
        with pytest.raises(ModelLoadError, match=message):
            resolve(config_for(folder, cache, quantize="q8_0"), progress=False)

    wide = random_weights() | {"model.layers.1.mlp.up_proj.weight": torch.ones(512, 512)}
    shapes = r"tensor model.layers.1.mlp.up_proj.weight is \[512, 512\], and by config.json it should be \[512, 256\]"
    refused(write(tmp_path / "wide", wide), shapes)
    less = {name: tensor for name, tensor in random_weights().items() if "layers.1.mlp" not in name}
    lacking = "model.layers.1.mlp.down_proj.weight and 2 more missing"
    refused(write(tmp_path / "less", less), f"{tmp_path / 'less'} can't be converted: the model's .*: {lacking}")
    refused(write(tmp_path / "heads", random_weights(), num_attention_heads=3), "can't build a model")
    refused(write(tmp_path / "kind", random_weights(), model_type="nobody-knows"), "can't build a model")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    refused(write(tmp_path / "full", random_weights()), r"has 1 MiB left, and 2 MiB are needed")
