"""Tiny models whose layers keep a state or select what they attend to, as models.py has the others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

# Mamba 2 as Granite 4, Nemotron-H and Falcon-H1 name it
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.3,
    "logits_scaling": 4.0,
}
MAMBA2: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 16}
MIXED = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
NEMOTRON: dict[str, Any] = {
    "head_dim": 32,
    "mamba_num_heads": 8,
    "mamba_head_dim": 24,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 64,
    "num_hidden_layers": None,
}
LATENT: dict[str, Any] = {
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "kv_lora_rank": 64,
    "q_lora_rank": 48,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
    "n_group": 1,
    "index_topk": 64,
    "index_head_dim": 64,
    "index_n_heads": 16,  # with few, many scores are 0, and equal scores are selected by another order
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
MAMBA = {"state_size": 16, "num_hidden_layers": 3, "intermediate_size": 256}
TIED = {"tie_word_embeddings": True}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

# name: (class of the configuration, its settings)
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "granitehybrid": (
        "GraniteMoeHybrid",
        GRANITE | MAMBA2 | EXPERTS | TIED | {"layer_types": MIXED, "shared_intermediate_size": 96},
    ),
    "granitehybrid dense": (
        "GraniteMoeHybrid",
        GRANITE
        | MAMBA2
        | {"layer_types": MIXED, "shared_intermediate_size": 192, "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "mamba": ("Mamba", MAMBA | TIED),
    "falcon mamba": ("FalconMamba", MAMBA),
    "mamba2": ("Mamba2", MAMBA | {"num_heads": 8, "head_dim": 32, "n_groups": 2}),
    "jamba": (
        "Jamba",
        {"attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "falcon-h1": (
        "FalconH1",
        MAMBA2
        | {"mamba_d_ssm": 256, "head_dim": 32, "rope_parameters": PLAIN | {"rope_theta": 100000.0}}
        | {"embedding_multiplier": 2.0, "lm_head_multiplier": 0.5, "key_multiplier": 0.4, "ssm_in_multiplier": 0.7}
        | {"mlp_multipliers": [0.9, 0.6], "ssm_multipliers": [0.8, 0.5, 0.6, 0.7, 0.9], "ssm_out_multiplier": 0.6}
        | {"attention_out_multiplier": 0.8, "attention_in_multiplier": 1.1},
    ),
    "falcon-h1 norm": (
        "FalconH1",
        MAMBA2
        | {"mamba_d_ssm": 256, "head_dim": 32, "rope_parameters": PLAIN, "mamba_rms_norm": True}
        | {"mamba_norm_before_gate": False}
        | TIED,
    ),
    "nemotron_h": (
        "NemotronH",
        NEMOTRON | {"layer_types": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"]},
    ),
    "nemotron_h_moe": (
        "NemotronH",
        NEMOTRON
        | {"layer_types": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"]}
        | {"n_routed_experts": 8, "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 96}
        | {"routed_scaling_factor": 2.5, "num_experts_per_tok": 2},
    ),
    "kimi-linear": (
        "KimiLinear",
        {key: value for key, value in LATENT.items() if not key.startswith(("index", "q_lora"))}
        | {"layer_types": MIXED, "linear_head_dim": 32, "linear_num_heads": 4, "num_local_experts": 8},
    ),
    "deepseek32": ("DeepseekV32", LATENT | {"rope_parameters": PLAIN, "scoring_func": "sigmoid"}),
    "glm-dsa": ("GlmMoeDsa", LATENT | {"rope_parameters": PLAIN}),
    "glm-dsa shared": (
        "GlmMoeDsa",
        LATENT | {"rope_parameters": PLAIN, "indexer_types": ["full", "full", "shared", "shared"]},
    ),
    "glm4 moe lite": (
        "Glm4MoeLite",
        {key: value for key, value in LATENT.items() if not key.startswith("index")}
        | {"rope_parameters": PLAIN, "scoring_func": "sigmoid"},
    ),
}
OLD_NAMES = {"full_attention": "attention", "linear_attention": "mamba"}
PATTERN = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}


def name_granite(config: dict[str, Any]) -> dict[str, Any]:
    return {"layer_types": [OLD_NAMES[kind] for kind in config["layer_types"]]}


def name_nemotron(config: dict[str, Any]) -> dict[str, Any]:
    """Write a letter for each layer. Models without experts lack the experts' fields."""
    kinds = config.pop("layers_block_type")
    if "moe" not in kinds:
        for name in [name for name in config if "expert" in name or name in ("n_group", "topk_group")]:
            del config[name]
    return {"hybrid_override_pattern": "".join(PATTERN[kind] for kind in kinds), "num_hidden_layers": len(kinds)}


def name_kimi(config: dict[str, Any]) -> dict[str, Any]:
    kinds = config.pop("layer_types")
    layers = {kind: [number for number, each in enumerate(kinds, 1) if each == kind] for kind in set(kinds)}
    return {
        "linear_attn_config": {
            "full_attn_layers": layers["full_attention"],
            "kda_layers": layers["linear_attention"],
            "head_dim": config["linear_head_dim"],
            "num_heads": config["linear_num_heads"],
            "short_conv_kernel_size": config["linear_conv_kernel_dim"],
        },
        "moe_router_activation_func": "sigmoid",
    }


# how the checkpoints on the hub, which the converter reads, name what transformers writes otherwise
PUBLISHED = {
    "granitemoehybrid": name_granite,
    "nemotron_h": name_nemotron,
    "kimi_linear": name_kimi,
}


# pattern of a tensor's name, and how published checkpoints name it
TENSORS = {"kimi_linear": (r"block_sparse_moe\.((?:gate|up|down)_proj)", r"mlp.\1")}


def publish_folder(folder: Path) -> None:
    """Rewrite a folder as published checkpoints have it."""
    path, weights = folder / "config.json", folder / "model.safetensors"
    config = json.loads(path.read_text())
    kind = config["model_type"]
    if (rename := PUBLISHED.get(kind)) is not None:
        changed = rename(config)
        path.write_text(json.dumps(config | changed))
    if names := TENSORS.get(kind):
        save_file(
            {re.sub(*names, name): value.clone() for name, value in load_file(weights).items()},
            weights,
            {"format": "pt"},
        )
