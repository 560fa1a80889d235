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
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
SPARSE = {"index_topk": 12, "index_n_heads": 16, "index_head_dim": 16}


def make_nextn(config: Any, settings: dict[str, Any]) -> Family:
    """A family with DeepSeek's names, whose config.json counts the heads."""
    return Family(config, settings, f"model.layers.{LAYERS}.", NEXTN, stated={"num_nextn_predict_layers": 1})


FAMILIES = {
    "deepseek": make_nextn(transformers.DeepseekV3Config, {**EXPERTS, **LATENT}),
    "deepseek_v32": make_nextn(transformers.DeepseekV32Config, {**EXPERTS, **LATENT, **SPARSE}),
    "glm_dsa": make_nextn(transformers.GlmMoeDsaConfig, {**EXPERTS, **LATENT, **SPARSE}),
    "glm": make_nextn(
        transformers.Glm4MoeConfig,
        {**EXPERTS, "head_dim": 16, "partial_rotary_factor": 0.5, "use_qk_norm": True, "attention_bias": True},
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
    "mimo": Family(
        transformers.Qwen2Config,
        {},
        "model.mtp_layers.0.",
        {
            "embedding": "model.mtp_layers.0.token_layernorm.weight",
            "hidden": "model.mtp_layers.0.hidden_layernorm.weight",
            "projection": "model.mtp_layers.0.input_proj.weight",
            "norm": "model.mtp_layers.0.final_layernorm.weight",
        },
        order=("hidden", "embedding"),
        masked=True,
        stated={
            "model_type": "mimo",
            "num_nextn_predict_layers": 1,
            "auto_map": {"AutoConfig": "mimo.MiMoConfig", "AutoModelForCausalLM": "mimo.MiMoForCausalLM"},
        },
    ),
}
# Of the published model's own code, what a server meets: the target's class has the head's layer, and never calls it.
MIMO = """
from torch import nn
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import (
    Qwen2Attention, Qwen2ForCausalLM, Qwen2MLP, Qwen2Model, Qwen2RMSNorm
)


class MiMoConfig(Qwen2Config):
    model_type = "mimo"
    num_nextn_predict_layers: int = 0


class MiMoLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        for name in ("input", "post_attention", "token", "hidden", "final"):
            setattr(self, f"{name}_layernorm", Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps))
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.self_attn = Qwen2Attention(config, layer_idx=0)
        self.mlp = Qwen2MLP(config)


class MiMoModel(Qwen2Model):
    config_class = MiMoConfig

    def __init__(self, config):
        super().__init__(config)
        self.mtp_layers = nn.ModuleList([MiMoLayer(config) for _ in range(config.num_nextn_predict_layers)])


class MiMoForCausalLM(Qwen2ForCausalLM):
    config_class = MiMoConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = MiMoModel(config)
        self.post_init()
"""


STDS = {"embed_tokens": 1.0, "o_proj": 0.08, "out_proj": 0.08, "down_proj": 0.08, "experts": 0.12}


def make_model(name: str, agreeing: bool = False, vocab: int = VOCAB) -> Any:
    """A model of the family whose last layer is the head's. agreeing: its layers change little of the embedding, so
    that the last token has the most to say."""
    family = FAMILIES[name]
    torch.manual_seed(4)
    config = family.config(**COMMON | {"vocab_size": vocab} | family.settings)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=STDS.get(key.split(".")[-2], 0.2) if agreeing else 0.2)
        elif "norm" in key:
            torch.nn.init.normal_(parameter, mean=0.0 if family.plus else 1.0, std=0.2)
    return model


def save_model(name: str, folder: Path, agreeing: bool = False, vocab: int = VOCAB, **config: Any) -> Path:
    """The folder as it is published: config.json states the target's layers alone. config: further settings."""
    family = FAMILIES[name]
    make_model(name, agreeing, vocab).save_pretrained(folder)
    path = folder / "model.safetensors"
    last = f"model.layers.{LAYERS}."
    weights = {
        family.layer + key.removeprefix(last) if key.startswith(last) else key: tensor
        for key, tensor in load_file(path).items()
    }
    save_file(weights | own_weights(name, agreeing), path, {"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    stated |= {"num_hidden_layers": LAYERS, **family.stated, **config}
    for key in ("layer_types", "mlp_layer_types", "indexer_types"):
        if stated.get(key):
            stated[key] = stated[key][:LAYERS]
    (folder / "config.json").write_text(json.dumps(stated))
    if name == "mimo":
        (folder / "mimo.py").write_text(MIMO)
    return folder


def own_weights(name: str, agreeing: bool = False) -> Weights:
    """The tensors of the head that a model's layer does not have. agreeing: the projection passes the embedding on."""
    family = FAMILIES[name]
    torch.manual_seed(5)
    base = 0.0 if family.plus else 1.0
    norms = {family.names[part]: base + 0.3 * torch.randn(HIDDEN) for part in ("embedding", "hidden", "norm")}
    projection = torch.randn(HIDDEN, 2 * HIDDEN) * (0.03 if agreeing else 0.3)
    if agreeing:
        projection[:, HIDDEN * family.order.index("embedding") :][:, :HIDDEN] += torch.eye(HIDDEN)
        norms = {key: torch.full((HIDDEN,), base) for key in norms}
    return {**norms, family.names["projection"]: projection}


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
