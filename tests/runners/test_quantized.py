"""A GGUF file whose matrices stay in their blocks: converted, loaded, and close to the same file dequantized."""

from __future__ import annotations

import gc
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, dequantize
from torch import nn

from runners.quantized_file import INNER, KINDS, LAYERS, VOCAB, WIDTH, converted, packs_of, write
from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models import resolve
from tailrace.models.convert_quantized import list_owned_matrices
from tailrace.models.footprint import weights_bytes
from tailrace.models.tensors import BLOCKS_METHOD
from tailrace.runners.flat_batch import FlatTokens
from tailrace.runners.load_checks import admit_blocks
from tailrace.runners.load_transformers import load_transformers
from tailrace.runners.quantized import QuantizedEmbedding, QuantizedLinear, swap_modules
from tailrace.runners.recorded import RecordedSteps
from tailrace.runners.transformers import TransformersRunner
from tailrace.runners.trials import decode_trial, trial_batch


class Served:
    """One file, one way to keep its weights."""

    def __init__(self, file: Path, cache: Path, weights: Any, dtype: Any = "float32") -> None:
        self.config = ModelConfig(model=str(file), cache_dir=str(cache), weights=weights, dtype=dtype, device="cpu")
        self.folder = converted(self.config)
        self.runner = load_transformers(self.config, self.folder, block_size=16)
        self.runner.allocate(64)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Among its matrices is one of a type that has no kernel, in the last layer's place of another."""
    return write(tmp_path_factory.mktemp("file") / "tiny.gguf", KINDS | {"ffn_up": Type.Q2_K})


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def quantized(file: Path, cache: Path) -> Served:
    return Served(file, cache, "quantized")


@pytest.fixture(scope="module")
def dequantized(file: Path, cache: Path) -> Served:
    return Served(file, cache, "dequantized")


def test_logits_are_near_those_of_the_dequantized_file(quantized: Served, dequantized: Served):
    """Random matrices suffer more from rounded activations than trained ones. A row of queries or keys in a wrong place
    would be far off: the negative control turns the first matrix of the first layer around."""
    ours, theirs = (served.runner.paged.run_trial() for served in (quantized, dequantized))
    error = (ours - theirs).norm() / theirs.norm()
    assert 0 < error < 0.05, error
    first = packs_of(quantized.runner.paged.model.model.layers[0].self_attn)[0]
    panels = first.data.view(-1, 64 * len(first.data) // first.n)
    kept = panels.clone()
    panels[:] = kept.flip(0)
    try:
        wrong = quantized.runner.paged.run_trial()
    finally:
        panels[:] = kept
    assert (wrong - theirs).norm() / theirs.norm() > 0.1


def test_matrices_stay_in_their_blocks(quantized: Served, file: Path):
    model = quantized.runner.paged.model
    assert isinstance(model.get_input_embeddings(), QuantizedEmbedding)
    assert isinstance(model.get_output_embeddings(), QuantizedLinear)
    assert model.get_output_embeddings().packed is model.get_input_embeddings().packed
    settings = json.loads((quantized.folder / "config.json").read_text())["quantization_config"]
    expected = {KINDS[name] for name in KINDS if name != "ffn_up"} | {Type.Q8_0}
    assert set(settings["types"].values()) == set(map(int, expected))
    assert settings["left"] == {"of Q2_K became float32": LAYERS}
    tensor = next(t for t in GGUFReader(file).tensors if t.name == "token_embd.weight")
    ids = torch.tensor([3, 256, 0])
    assert torch.equal(quantized.runner.embed(ids), torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))[ids])


def test_decode_steps_are_recorded(quantized: Served):
    """The embedding's ids are checked without torch, in the recorded step as well."""
    runner, steps = quantized.runner, quantized.runner.decode_steps
    assert isinstance(steps, RecordedSteps)
    batch = decode_trial(runner.vocab_size, 16, 2)
    assert torch.equal(runner.forward(batch), runner.paged.logits(batch))
    assert steps.serves(batch)
    assert torch.equal(runner.forward(batch), runner.paged.logits(batch))
    with pytest.raises(ValueError, match=r"ids must be in \[0, 257\), got 1 … 257"):
        runner.forward(replace(batch, token_ids=torch.tensor([1, 257])))


def test_what_became_of_the_tensors_is_said(quantized: Served, caplog: pytest.LogCaptureFixture):
    from transformers import AutoConfig

    with caplog.at_level(logging.INFO):
        admit_blocks(AutoConfig.from_pretrained(quantized.folder), torch.device("cpu"))
    assert "4 tensors stay Q4_K" in caplog.text
    assert "2 of Q2_K became float32" in caplog.text
    with pytest.raises(ConfigError, match=r"have kernels on the CPU only; leave them out, or set model\.device"):
        admit_blocks(AutoConfig.from_pretrained(quantized.folder), torch.device("cuda"))


def test_the_footprint_is_what_the_modules_hold(quantized: Served):
    model = quantized.runner.paged.model
    packs = {id(pack): pack for pack in packs_of(model)}
    held = sum(pack.data.numel() * pack.data.itemsize for pack in packs.values())
    held += sum(p.numel() * p.itemsize for p in model.parameters()) + WIDTH * 4 * (2 * LAYERS + 1)
    said = weights_bytes(quantized.folder, 4, packed=True)
    # fused norms keep their weights as plain tensors, and gate_up holds bf16 beside blocks
    assert abs(said - held) < WIDTH * 4 * 20
    assert said < 0.6 * weights_bytes(quantized.folder, 4, packed=True) + 4 * LAYERS * INNER * WIDTH


def test_what_was_replaced_is_gone(file: Path, cache: Path):
    """Merged projections are copies, so nothing may hold the modules that they were made of, as the quantizer that
    transformers keeps did: they are two thirds of a model."""

    def alive() -> list[QuantizedLinear]:
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is QuantizedLinear]

    before = alive()  # held, so that no other gets the place of one
    model = Served(file, cache, "quantized").runner.paged.model
    own = [module for module in model.modules() if type(module) is QuantizedLinear]
    assert own  # the output projection
    assert {id(one) for one in alive()} - {id(one) for one in before} == {id(one) for one in own}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_has_the_same_logits_however_its_prompt_is_cut(file: Path, cache: Path, dtype: str):
    runner = Served(file, cache, "quantized", dtype).runner
    ids = [(7 * i * i + 3) % VOCAB for i in range(80)]
    whole = forward(runner, [(ids, 80)])
    cut = [forward(runner, [(ids[a:b], b)]) for a, b in ((0, 1), (1, 34), (34, 35), (35, 80))]
    assert torch.equal(torch.cat(cut), whole)
    beside = forward(runner, [(ids[:50], 50), (ids[::-1], 80)])
    assert torch.equal(beside[:50], whole[:50])


def forward(runner: TransformersRunner, parts: list[tuple[list[int], int]]) -> torch.Tensor:
    """Logits of all tokens of a pass over (tokens, end) of sequences."""
    import numpy as np

    flat = FlatTokens()
    for tokens, end in parts:
        flat.add(tokens, end)
    flat.wanted = list(range(len(flat.token_ids)))
    tables = np.arange(len(parts) * 8, dtype=np.int32).reshape(len(parts), 8)
    return runner.forward(flat.make_batch(tables, 16)).clone()


def test_an_adapter_on_blocks(quantized: Served, tmp_path: Path):
    """Rows with an adapter change, rows without it have the bits that they have alone."""
    from safetensors.torch import save_file

    module, generator = "model.layers.0.self_attn.q_proj", torch.Generator().manual_seed(0)
    parts = {"A": torch.randn(4, WIDTH, generator=generator), "B": torch.randn(WIDTH, 4, generator=generator)}
    save_file(
        {f"base_model.model.{module}.lora_{part}.weight": tensor for part, tensor in parts.items()},
        tmp_path / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    config = msgspec.structs.replace(quantized.config, lora=f"a={tmp_path}")
    runner = load_transformers(config, quantized.folder, block_size=16)
    runner.allocate(64)
    usual = runner.paged.run_trial()
    assert torch.equal(usual, runner.forward(trial_batch(VOCAB, 16)))
    adapted = runner.forward(trial_batch(VOCAB, 16, ((1, torch.arange(10, 20)),)))
    assert torch.equal(adapted[:10], usual[:10])
    assert not torch.isclose(adapted[10:], usual[10:], atol=1e-3).all(-1).any()


def test_only_plain_modules_hold_blocks():
    class Scaled(nn.Embedding):
        pass

    model = nn.ModuleDict({"plain": nn.Linear(8, 4), "scaled": Scaled(5, 8), "head": nn.Linear(8, 5)})
    model["head"].weight = model["scaled"].weight
    assert [name for name, _, _ in list_owned_matrices(model)] == ["plain.weight"]
    with pytest.raises(ModelLoadError, match="scaled is a Scaled, whose weights can't be quantized"):
        swap_modules(model, {"scaled.weight": (5, 8)}, torch.float32)
    with pytest.raises(ModelLoadError, match="has no module gone"):
        swap_modules(model, {"gone.weight": (5, 8)}, torch.float32)


def test_a_folder_has_no_blocks_to_keep(dequantized: Served):
    with pytest.raises(
        ModelLoadError,
        match=r"model\.weights quantized keeps codes as they are in a file .* has floats; --quantize",
    ):
        resolve(ModelConfig(model=str(dequantized.folder), weights="quantized"), progress=False)


def test_damaged_blocks_are_refused(quantized: Served, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    for path in quantized.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"][0, 208:210] = 0x7C
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"layers\.1\.self_attn\.v_proj\.weight: a block has a scale"):
        load_transformers(quantized.config, tmp_path, block_size=16)
    assert BLOCKS_METHOD == "tailrace"
    assert trial_batch(VOCAB, 16).token_ids.max() < VOCAB
