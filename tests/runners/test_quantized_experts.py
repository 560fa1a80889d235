"""Folders of mixtures: experts become blocks with --quantize, and numbers if they are packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from runners import packers
from runners.quantized_file import packs_of
from runners.quantized_folder import VOCAB, packed, write
from runners.test_quantized_folder import config_for, in_this_process, loaded
from tailrace import kernels
from tailrace.errors import ModelLoadError
from tailrace.models import resolve
from tailrace.models.footprint import weights_bytes
from tailrace.runners.experts import PackedExperts
from tailrace.runners.load_transformers import load_transformers

__all__ = ["in_this_process"]  # a fixture of every test here
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}


def test_experts_are_widened_and_merged_by_the_loader(tmp_path: Path):
    """A checkpoint with names and a matrix per expert of its own, which transformers renames and merges."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "sliding_window": None}
    torch.manual_seed(0)
    MixtralForCausalLM(MixtralConfig(**sizes, **heads)).save_pretrained(tmp_path / "saved")
    tensors = load_file(tmp_path / "saved" / "model.safetensors")
    experts = [name for name in tensors if ".experts." in name]
    assert len(experts) == 12, sorted(tensors)
    matrices = [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight") or name in experts]
    folder = write(tmp_path / "packed", packed(tensors, lambda w: packers.gptq(packers.rounded(w, 32)), matrices))
    config = json.loads((tmp_path / "saved" / "config.json").read_text()) | {"quantization_config": GPTQ}
    (folder / "config.json").write_text(json.dumps(config))
    found, ours = loaded(config_for(folder, tmp_path, weights="quantized", dtype="float32"))
    settings = json.loads((found / "config.json").read_text())["quantization_config"]
    assert settings["left"] == {"of other modules became float32": len(experts)}
    assert len(settings["types"]) == len(matrices) - len(experts) == 4
    _, theirs = loaded(config_for(folder, tmp_path, dtype="float32"))
    expected = theirs.paged.run_trial()
    assert (ours.paged.run_trial() - expected).norm() / expected.norm() < 0.03

    plain = write(tmp_path / "plain", tensors)
    (plain / "config.json").write_text((tmp_path / "saved" / "config.json").read_text())
    found, ours = loaded(config_for(plain, tmp_path, quantize="q8_0", dtype="float32"))
    settings = json.loads((found / "config.json").read_text())["quantization_config"]
    assert len(settings["types"]) == 8  # with the embedding, the output projection, and two of all experts
    assert settings["left"] == {"of other modules stay floats": 1}  # the router
    assert all(mixture.quantized for mixture in mixtures_of(ours))
    _, theirs = loaded(config_for(plain, tmp_path, dtype="float32"))
    expected = theirs.paged.run_trial()
    assert (ours.paged.run_trial() - expected).norm() / expected.norm() < 0.03

    first = experts[0]
    for changed, problem in (
        (tensors | {first: tensors[first][:, :32].contiguous()}, f"tensor {first} is "),
        ({name: tensors[name] for name in tensors if name != first}, " have 896 rows, and by config.json 1024"),
    ):
        save_file(changed, plain / "model.safetensors")
        with pytest.raises(ModelLoadError, match=problem):
            resolve(config_for(plain, tmp_path, quantize="q8_0"), progress=False)


def test_the_footprint_counts_all_experts(tmp_path: Path):
    """And the output projection shares the embedding's blocks."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "sliding_window": None}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, tie_word_embeddings=True))
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").write_text("{}")
    found, ours = loaded(config_for(tmp_path / "saved", tmp_path, quantize="q4_0", dtype="float32"))
    experts = [
        layer for mixture in mixtures_of(ours) for each in (mixture.up, mixture.down) for layer in each.packed.layers
    ]
    assert len(experts) == 8
    packs = {id(pack): pack for pack in [*packs_of(ours.paged.model), *experts]}
    router_and_norms = 4 * (4 * 64 + 3 * 64)
    held = sum(pack.data.numel() * pack.data.itemsize for pack in packs.values()) + router_and_norms
    assert weights_bytes(found, 4, packed=True) == held
    config = json.loads((found / "config.json").read_text())
    (found / "config.json").write_text(json.dumps(config | {"num_local_experts": 5}))
    with pytest.raises(ModelLoadError, match=r"4 matrices of 256 rows, and by config\.json there are 5 of 256"):
        load_transformers(config_for(found, tmp_path, dtype="float32"), found, block_size=16)


def mixtures_of(runner: Any) -> list[PackedExperts]:
    return [module for module in runner.paged.model.modules() if isinstance(module, PackedExperts)]


def test_experts_may_be_one_tensor_in_the_checkpoint(tmp_path: Path):
    """And each matrix has the blocks that it has alone. Rows that fill no block stay floats."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "shared_expert_intermediate_size": 32}
    model = Qwen3_5MoeForCausalLM(
        Qwen3_5MoeTextConfig(**sizes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48)
    )
    model.save_pretrained(tmp_path / "saved")  # a tensor per expert, other than the published checkpoints
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "saved" / "model.safetensors", {"format": "pt"})
    (tmp_path / "saved" / "tokenizer.json").write_text("{}")
    [up] = [name for name in tensors if name.endswith("experts.gate_up_proj")]
    assert tensors[up].shape == (4, 96, 64)
    found, ours = loaded(config_for(tmp_path / "saved", tmp_path, quantize="q4_0", dtype="float32"))
    [mixture] = mixtures_of(ours)
    states = torch.randn(7, 64)
    starts = torch.tensor([0, 2, 2, 5, 7])
    for expert, (begin, end) in enumerate(starts.unfold(0, 2, 1).tolist()):
        raw = torch.from_numpy(quantize(tensors[up][expert].numpy(), GGMLQuantizationType.Q4_0))
        alone = kernels.linear(states[begin:end], kernels.pack_quantized(raw, 2, 64))
        assert torch.equal(mixture.up(states, starts)[begin:end], alone)
    types = json.loads((found / "config.json").read_text())["quantization_config"]["types"]
    assert [name for name in types if "experts." in name] == [up]
