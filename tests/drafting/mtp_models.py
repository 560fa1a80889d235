"""Tiny random models with an MTP head, in the form in which each family publishes it, and what such a head computes,
written down plainly: the head itself by hand, its decoder layer by transformers, over whole sequences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from drafting.heads import HIDDEN, VOCAB, Weights

LAYERS = 3  # of the target; the head's is one more
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS + 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
EXPERTS = {
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}


@dataclass(frozen=True)
class Family:
    """config: transformers' class. layer: what the file calls the head's layer; names: its other tensors. order: what
    the projection takes. plus: norms multiply by 1 + weight. masked: position 0 has no embedding."""

    config: Any
    settings: dict[str, Any]
    layer: str
    names: dict[str, str]
    order: tuple[str, str] = ("embedding", "hidden")
    plus: bool = False
    masked: bool = False
    stated: dict[str, Any] = field(default_factory=dict)


NEXTN = {
    "embedding": f"model.layers.{LAYERS}.enorm.weight",
    "hidden": f"model.layers.{LAYERS}.hnorm.weight",
    "projection": f"model.layers.{LAYERS}.eh_proj.weight",
    "norm": f"model.layers.{LAYERS}.shared_head.norm.weight",
}
MTP = {
    "embedding": "mtp.pre_fc_norm_embedding.weight",
    "hidden": "mtp.pre_fc_norm_hidden.weight",
    "projection": "mtp.fc.weight",
    "norm": "mtp.norm.weight",
}
HYBRID = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
FAMILIES = {
    "deepseek": Family(
        transformers.DeepseekV3Config,
        {
            **EXPERTS,
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
        },
        f"model.layers.{LAYERS}.",
        NEXTN,
        stated={"num_nextn_predict_layers": 1},
    ),
    "glm": Family(
        transformers.Glm4MoeConfig,
        {**EXPERTS, "head_dim": 16, "partial_rotary_factor": 0.5, "use_qk_norm": True, "attention_bias": True},
        f"model.layers.{LAYERS}.",
        NEXTN,
        stated={"num_nextn_predict_layers": 1},
    ),
    "qwen3_next": Family(
        transformers.Qwen3NextConfig,
        {
            **HYBRID,
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        "mtp.layers.0.",
        MTP,
        plus=True,
    ),
    "qwen3_5": Family(
        transformers.Qwen3_5TextConfig,
        {**HYBRID, "head_dim": 16},
        "mtp.layers.0.",
        MTP,
        plus=True,
        stated={"mtp_num_hidden_layers": 1},
    ),
    "qwen3_5_moe": Family(
        transformers.Qwen3_5MoeTextConfig,
        {
            **HYBRID,
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        "mtp.layers.0.",
        MTP,
        plus=True,
        stated={"mtp_num_hidden_layers": 1},
    ),
}


def make_model(name: str) -> Any:
    """A model of the family whose last layer is the head's."""
    family = FAMILIES[name]
    torch.manual_seed(4)
    config = family.config(**COMMON | family.settings)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
        elif "norm" in key:
            torch.nn.init.normal_(parameter, mean=0.0 if family.plus else 1.0, std=0.2)
    return model


def save_model(name: str, folder: Path, **config: Any) -> Path:
    """The folder as it is published: config.json states the target's layers alone. config: further settings."""
    family = FAMILIES[name]
    make_model(name).save_pretrained(folder)
    path = folder / "model.safetensors"
    last = f"model.layers.{LAYERS}."
    weights = {
        family.layer + key.removeprefix(last) if key.startswith(last) else key: tensor
        for key, tensor in load_file(path).items()
    }
    save_file(weights | own_weights(name), path, {"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    stated |= {"num_hidden_layers": LAYERS, **family.stated, **config}
    for key in ("layer_types", "mlp_layer_types"):
        if stated.get(key):
            stated[key] = stated[key][:LAYERS]
    (folder / "config.json").write_text(json.dumps(stated))
    return folder


def own_weights(name: str) -> Weights:
    """The tensors of the head that a model's layer does not have."""
    family = FAMILIES[name]
    torch.manual_seed(5)
    base = 0.0 if family.plus else 1.0
    norms = {family.names[part]: base + 0.3 * torch.randn(HIDDEN) for part in ("embedding", "hidden", "norm")}
    return {**norms, family.names["projection"]: torch.randn(HIDDEN, 2 * HIDDEN) * 0.3}


def plain(name: str, tokens: Sequence[int], states: torch.Tensor, count: int, known: Sequence[int]) -> torch.Tensor:
    """Logits of `count` greedy drafts after `tokens`, given the target's states [n, H] of the positions `known`."""
    family, model, own = FAMILIES[name], make_model(name), own_weights(name)
    eps = model.config.rms_norm_eps

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * (weight + 1 if family.plus else weight)

    following, places = [tokens[i + 1] for i in known], list(known)
    states, found = states[list(known)], []
    for _ in range(count):
        rows = model.model.embed_tokens.weight[torch.tensor(following)]
        if family.masked:
            rows = rows.masked_fill((torch.tensor(places) == 0)[:, None], 0)
        parts = {"embedding": rows, "hidden": states}
        fused = torch.cat([norm(parts[part], own[family.names[part]]) for part in family.order], -1)
        out = run_layer(model, fused @ own[family.names["projection"]].T, places)
        last = norm(out[-1:], own[family.names["norm"]])
        found.append((last @ model.lm_head.weight.T)[0])
        following.append(int(found[-1].argmax()))
        places.append(places[-1] + 1)
        states = torch.cat([states, last])
    return torch.stack(found)


def run_layer(model: Any, rows: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """The outputs [n, H] of the model's last layer."""
    ids, length = torch.tensor([list(places)]), len(rows)
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    embeddings = model.model.rotary_emb(rows[None], ids)
    out = model.model.layers[LAYERS](
        rows[None], attention_mask=mask, position_ids=ids, position_embeddings=embeddings, use_cache=False
    )
    return (out if isinstance(out, torch.Tensor) else out[0])[0]
