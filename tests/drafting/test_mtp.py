"""MTP heads: their logits against the same written down plainly, their caches against a fresh start, and what is
refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from drafting.heads import VOCAB, Argmax, Weights, check_histories, drafted, hidden_states, observe
from drafting.mtp_models import FAMILIES, LAYERS, make_model, own_weights, plain, save_model
from models.gguf_state_writer import write_state_model
from models.gguf_writer import write_model
from tailrace.base.mtp import SHARED
from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting.chain import ChainDrafter
from tailrace.drafting.mtp_head import MtpHead, take_target
from tailrace.engine import cache_size
from tailrace.engine.cache_size import check_memory
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models import convert, convert_folder
from tailrace.models.footprint import head_bytes, weights_bytes
from tailrace.models.gguf_architectures import ARCHITECTURES
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_parts import HEAD
from tailrace.models.gguf_recipes import Recipes
from tailrace.runners import load_runner
from tailrace.runners.scripted import ScriptedRunner

SIZE = 16


def load(folder: Path) -> Any:
    """A runner over the folder's model, not allocated."""
    config = ModelConfig(dtype="float32", threads=1, device="cpu", trust_remote_code=True)
    return load_runner(config, folder, block_size=SIZE)


class Made:
    """One head of each family, loaded once. folders: of their models."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory
        self.folders: dict[str, Path] = {}
        self.heads: dict[str, MtpHead] = {}

    def __call__(self, name: str) -> Callable[[], ChainDrafter]:
        if name not in self.heads:
            self.folders[name] = save_model(name, self.factory.mktemp(name))
            self.heads[name] = MtpHead.load(self.folders[name], load(self.folders[name]))
        return lambda: ChainDrafter(self.heads[name], Argmax(), 24, SIZE)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    return Made(tmp_path_factory)


def some(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("cuts", [(), (1,), (16,), (7, 20, 21, 39), tuple(range(1, 44))], ids=len)
@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_logits_are_those_of_the_definition(name, cuts, made):
    """However a prompt is cut into chunks."""
    drafter, tokens = made(name)(), some(45)
    assert drafter.captures == (LAYERS,)
    ends = [*cuts, 44]
    for first, end in zip([0, *cuts], ends, strict=True):
        observe(drafter, (0, tokens, first, end - first))
    (got,) = drafted(drafter, (0, tokens, 4))
    expected = plain(name, tokens, hidden_states(tokens, 1), 4, range(44))
    torch.testing.assert_close(got, expected, atol=3e-4, rtol=3e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FAMILIES)
def test_any_history_leaves_what_a_fresh_start_would(name, seed, made):
    assert check_histories(made(name), 4, seed) > 20


# ---- checkpoints


def change(folder: Path, spoil: Callable[[Weights], object]) -> None:
    """Spoil the folder's tensors."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    spoil(weights)
    save_file(weights, path, {"format": "pt"})


def without(*names: str) -> Callable[[Weights], object]:
    return lambda weights: [weights.pop(name) for name in names]


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[Weights], object]:
    return lambda weights: weights.update({name: tensor})


def only_target(weights: Weights) -> None:
    for name in [name for name in weights if name.startswith("model.layers.3.")]:
        del weights[name]


LAST = f"model.layers.{LAYERS}."
WRONG: dict[str, tuple[str, Callable[[Weights], object], dict, str]] = {
    "no head": ("deepseek", only_target, {}, r"no MTP head: there is none of the tensors layers.3.eh_proj.weight"),
    "no projection": ("qwen3_5", without("mtp.fc.weight"), {}, "has no MTP head"),
    "zero layers": ("glm", lambda _: None, {"num_nextn_predict_layers": 0}, "num_nextn_predict_layers is 0"),
    "zero layers, qwen": ("qwen3_5", lambda _: None, {"mtp_num_hidden_layers": 0}, "mtp_num_hidden_layers is 0"),
    "embedding of its own": (
        "qwen3_5",
        lambda _: None,
        {"mtp_use_dedicated_embeddings": True},
        "mtp_use_dedicated_embeddings must be false",
    ),
    "no norm": ("glm", without(f"{LAST}enorm.weight"), {}, r"no tensor layers.3.enorm.weight, which must be \[32\]"),
    "no last norm": ("qwen3_next", without("mtp.norm.weight"), {}, r"no tensor mtp.norm.weight"),
    "narrow projection": (
        "deepseek",
        with_tensor(f"{LAST}eh_proj.weight", torch.zeros(32, 32)),
        {},
        r"layers.3.eh_proj.weight must be \[32, 64\], got \[32, 32\]",
    ),
    "layer of another size": (
        "qwen3_5",
        with_tensor("mtp.layers.0.self_attn.k_proj.weight", torch.zeros(8, 32)),
        {},
        r"mtp.layers.0.self_attn.k_proj.weight must be \[32, 32\], got \[8, 32\]",
    ),
    "no matrix of the layer": (
        "glm",
        without(f"{LAST}self_attn.q_proj.weight"),
        {},
        "not all there: layers.3.self_attn.q_proj.weight is missing",
    ),
    "no expert": ("deepseek", without(f"{LAST}mlp.experts.3.up_proj.weight"), {}, "MTP head"),
    "more than we know": (
        "glm",
        with_tensor(f"{LAST}gate.weight", torch.zeros(32)),
        {},
        "nothing here uses: layers.3.gate.weight",
    ),
    "codes": (
        "qwen3_5",
        with_tensor("mtp.layers.0.mlp.up_proj.weight", torch.zeros(48, 16, dtype=torch.uint8)),
        {},
        "mtp.layers.0.mlp.up_proj.weight is uint8: an MTP head in this format is not read",
    ),
    "float8 without scales": (
        "glm",
        with_tensor(f"{LAST}self_attn.q_proj.weight", torch.zeros(64, 32).to(torch.float8_e4m3fn)),
        {},
        "q_proj.weight is float8_e4m3fn: an MTP head in this format is not read",
    ),
    "not a number": (
        "mimo",
        lambda weights: weights["model.mtp_layers.0.mlp.up_proj.weight"].fill_(float("nan")),
        {},
        "NaN or infinite",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(case, made, tmp_path):
    name, spoil, config, message = WRONG[case]
    made(name)
    folder, runner = save_model(name, tmp_path, **config), load(made.folders[name])
    change(folder, spoil)
    for key, value in config.items():
        setattr(runner.paged.model.config, key, value)
    with pytest.raises(ModelLoadError, match=message) as caught:
        MtpHead.load(folder, runner)
    assert "\n" not in str(caught.value)


def test_a_target_without_layers_is_refused():
    with pytest.raises(ConfigError, match="mtp needs a model with an MTP head"):
        take_target(ScriptedRunner(VOCAB, lambda _: 3, 64, block_size=SIZE))


@pytest.mark.parametrize("copies", [False, True])
def test_float8_in_blocks_and_copies_of_the_targets_ends(copies, made, tmp_path):
    """As DeepSeek publishes it: matrices of float8 with a scale per block, and the embedding and output head again."""
    folder = save_model("deepseek", tmp_path)
    torch.manual_seed(8)
    matrix, scales = torch.randn(32, 64).to(torch.float8_e4m3fn), torch.rand(4, 4) + 0.5
    exact = {f"{LAST}self_attn.o_proj.weight": matrix.float() * scales.repeat_interleave(8, 0).repeat_interleave(16, 1)}
    change(folder, lambda weights: weights.update(exact))
    first = ChainDrafter(MtpHead.load(folder, load(folder)), Argmax(), 24, SIZE)  # type: ignore[arg-type]
    raw = {f"{LAST}self_attn.o_proj.weight": matrix, f"{LAST}self_attn.o_proj.weight_scale_inv": scales}
    if copies:
        raw |= {f"{LAST}{end}": torch.zeros(VOCAB, 32) for end in ("embed_tokens.weight", "shared_head.head.weight")}
    change(folder, lambda weights: weights.update(raw))
    config = json.loads((folder / "config.json").read_text())
    runner = load(made.folders["deepseek"])
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 16]}})
    )
    second = ChainDrafter(MtpHead.load(folder, runner), Argmax(), 24, SIZE)  # type: ignore[arg-type]
    for each in (first, second):
        observe(each, (0, some(20), 0, 19))
    assert torch.equal(drafted(first, (0, some(20), 3))[0], drafted(second, (0, some(20), 3))[0])


@pytest.mark.parametrize("name", ["glm", "glm_dsa"])
def test_the_bytes_of_its_cache(name, made):
    drafter = made(name)()
    caches, index_keys = drafter.cache
    kept = [part for cache in caches for part in (cache.keys, cache.values)]
    assert drafter.cache_bytes == sum(part.nbytes for part in [*kept, *index_keys])
    assert bool(index_keys) is (name == "glm_dsa")


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_a_folder_that_is_quantized_at_load_keeps_its_head(name, tmp_path):
    """In floats; embedding and output head are the target's, in blocks of eight bits."""
    source, folder = save_model(name, tmp_path / "source"), tmp_path / "made"
    convert_folder.fill_folder(source, folder, "float32", "q8_0", remote_code=True)
    drafter, tokens = ChainDrafter(MtpHead.load(folder, load(folder)), Argmax(), 24, SIZE), some(30)  # type: ignore[arg-type]
    assert head_bytes(folder, 4) == head_bytes(source, 4)
    observe(drafter, (0, tokens, 0, 29))
    (got,) = drafted(drafter, (0, tokens, 1))
    expected = plain(name, tokens, hidden_states(tokens, 1), 1, range(29))
    assert (got - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("name", FAMILIES)
def test_memory_is_counted_with_the_head_and_without(name, tmp_path):
    """Without the copies of the target's two ends, which are not read."""
    folder = save_model(name, tmp_path)
    whole = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    model, own = make_model(name), own_weights(name)
    head = sum(p.numel() for p in model.model.layers[LAYERS].parameters()) + sum(t.numel() for t in own.values())
    buffers = [n for n, _ in model.model.layers[LAYERS].named_buffers() if n.endswith("e_score_correction_bias")]
    head += 8 * len(buffers)
    assert head_bytes(folder, 2) == 2 * head
    assert weights_bytes(folder, 2, packed=False) == 2 * (whole - head)
    copies = {f"model.layers.{LAYERS}.{end}": torch.zeros(VOCAB, 32) for end in SHARED}
    change(folder, lambda weights: weights.update(copies))
    assert head_bytes(folder, 2) == 2 * head
    with (
        pytest.raises(ModelLoadError, match="of memory for its weights"),
        mock.patch.object(cache_size, "measure_available_memory", return_value=2 * whole - 100),
    ):
        check_memory(folder, ModelConfig(dtype="bfloat16"), SpeculationConfig(drafter="mtp"))
    with mock.patch.object(cache_size, "measure_available_memory", return_value=2 * whole + 100 * VOCAB):
        check_memory(folder, ModelConfig(dtype="bfloat16"), SpeculationConfig(drafter="mtp"))


# ---- GGUF

NEXTN = {"embedding": "enorm", "hidden": "hnorm", "projection": "eh_proj", "norm": "shared_head_norm"}


def write_file(name: str, path: Path, kind: Type = Type.F32, without: str = "") -> Path:
    """A file in which the last block predicts a further token, as llama.cpp's converter writes it."""
    own = own_weights(name)
    tensors = {
        f"blk.{LAYERS}.nextn.{there}.weight": own[FAMILIES[name].names[part]]
        for part, there in NEXTN.items()
        if there != without
    }
    tensors[f"blk.{LAYERS}.nextn.shared_head_head.weight"] = torch.zeros(VOCAB, 32)
    write = write_state_model if name in ("deepseek_v32", "glm_dsa") else write_model
    return write(make_model(name), path, kind, {"nextn_predict_layers": 1}, tensors)


def convert_file(path: Path, keep: bool = False) -> Path:
    folder = path.with_suffix("")
    folder.mkdir()
    convert.convert_weights(Fields(path), folder, "float32", keep)
    return folder


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["deepseek", "glm", "deepseek_v32", "glm_dsa"])
@torch.inference_mode()
def test_a_gguf_file_has_the_same_head(name, keep, tmp_path):
    """Also beside a model whose matrices stay in blocks."""
    folder = convert_file(write_file(name, tmp_path / "tiny.gguf"), keep)
    runner = load(folder)
    assert runner.num_layers == LAYERS
    drafter, tokens = ChainDrafter(MtpHead.load(folder, runner), Argmax(), 24, SIZE), some(45)  # type: ignore[arg-type]
    observe(drafter, (0, tokens, 0, 44))
    (got,) = drafted(drafter, (0, tokens, 4))
    torch.testing.assert_close(got, plain(name, tokens, hidden_states(tokens, 1), 4, range(44)), atol=3e-4, rtol=3e-4)


def test_a_gguf_file_without_a_whole_head_is_served_without(tmp_path, capsys):
    folder = convert_file(write_file("glm", tmp_path / "tiny.gguf", without="hnorm"))
    assert "layer 3, which predicts further tokens, is left out: model.layers.3.hnorm.weight is missing" in (
        capsys.readouterr().err
    )
    with pytest.raises(ModelLoadError, match="has no MTP head"):
        MtpHead.load(folder, load(folder))


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3next"])
def test_norms_of_qwens_head_lose_the_one_that_the_file_adds(architecture):
    settings = {"num_hidden_layers": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
    tensors = [f"blk.2.nextn.{name}.weight" for name in NEXTN.values()]
    known = ARCHITECTURES[architecture]
    recipes = Recipes(architecture, settings, tensors, {**known.ways, **HEAD}, known.changes, 3)
    for name, shift in (("enorm", 1), ("hnorm", 1), ("shared_head.norm", 1), ("eh_proj", 0)):
        recipe = recipes.find(f"model.layers.2.{name}.weight")
        assert recipe is not None
        assert recipe.join([np.full(3, 5.0)]).tolist() == [5.0 - shift] * 3
