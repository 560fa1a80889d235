"""Writes models with state spaces, Kimi Linear and models with indexers as GGUF files, with the fields and the tensors
that llama.cpp's converter writes. gguf_writer.py has the others; `make test-gguf` has the converter itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map

from gguf_judge.models import WORDS
from models.gguf_writer import Type, add, write_value

STATE = {"conv_kernel": "ssm.conv_kernel", "state_size": "ssm.state_size", "time_step_rank": "ssm.time_step_rank"}
LONG = {"mamba_d_conv": "ssm.conv_kernel", "mamba_d_state": "ssm.state_size"}
LONG2 = {**LONG, "mamba_n_heads": "ssm.time_step_rank", "mamba_n_groups": "ssm.group_count"}
NORM = {"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}
RMS = {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
COMMON = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
}
MIXED = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
SHARED = {"moe_intermediate_size": "expert_feed_forward_length", "n_shared_experts": "expert_shared_count"}
SHARED |= {"routed_scaling_factor": "expert_weights_scale"}
GRANITE = {"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale"}
GRANITE |= {"residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}
LATENT = {"kv_lora_rank": "attention.kv_lora_rank", "qk_rope_head_dim": "rope.dimension_count"}
LATENT |= {"qk_head_dim": "attention.key_length_mla", "v_head_dim": "attention.value_length_mla"}
INDEXED = {"q_lora_rank": "attention.q_lora_rank", "index_n_heads": "attention.indexer.head_count"}
INDEXED |= {"index_head_dim": "attention.indexer.key_length", "index_topk": "attention.indexer.top_k"}
INDEXED |= {"first_k_dense_replace": "leading_dense_block_count", "norm_topk_prob": "expert_weights_norm"}
INDEXED |= {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
DSA = {**COMMON, **RMS, **MIXED, **SHARED, **LATENT, **INDEXED}
# model type → architecture, settings → fields
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "mamba": ("mamba", {**STATE, **NORM}),
    "falcon_mamba": ("mamba", {**STATE, **NORM}),
    "mamba2": (
        "mamba2",
        {**STATE, **NORM, "num_heads": "ssm.time_step_rank", "n_groups": "ssm.group_count"},
    ),
    "jamba": ("jamba", {**COMMON, **RMS, **MIXED, **LONG, "mamba_dt_rank": "ssm.time_step_rank"}),
    "falcon_h1": (
        "falcon-h1",
        {**COMMON, **RMS, **LONG2, "head_dim": "attention.key_length", "mamba_d_ssm": "ssm.inner_size"},
    ),
    "granitemoehybrid": (
        "granitehybrid",
        {**COMMON, **RMS, **MIXED, **LONG2, **GRANITE, "shared_intermediate_size": "expert_shared_feed_forward_length"},
    ),
    "nemotron_h": (
        "nemotron_h_moe",
        {
            **{setting: field for setting, field in COMMON.items() if setting != "intermediate_size"},
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
            "conv_kernel": "ssm.conv_kernel",
            "ssm_state_size": "ssm.state_size",
            "n_groups": "ssm.group_count",
            "head_dim": "attention.key_length",
            "mamba_num_heads": "ssm.time_step_rank",
            "norm_topk_prob": "expert_weights_norm",
            **MIXED,
            **SHARED,
            "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
    ),
    "kimi_linear": (
        "kimi-linear",
        {**COMMON, **RMS, **MIXED, **SHARED, **LATENT}
        | {"linear_head_dim": "kda.head_dim", "linear_conv_kernel_dim": "ssm.conv_kernel"},
    ),
    "deepseek_v32": ("deepseek32", DSA),
    "glm_moe_dsa": ("glm-dsa", DSA),
}
KNOWN_AS = {"deepseek32": "glm-dsa"}  # the package gguf does not have these names
SIGMOID = ("kimi_linear", "deepseek_v32")
# ends of parameters' names → those of tensors that the package gguf has no name for
OWN = {
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"forget_gate.{name}_proj.weight": f"ssm_{name}.weight" for name in ("f_a", "f_b")},
    **{f".{end}": tensor for end, tensor in (("dt_bias", "ssm_dt.bias"), ("A_log", "ssm_a"), ("D", "ssm_d"))},
    "experts.up_proj": "ffn_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}

FALCON = {"falcon_h1": {"pre_ff_layernorm.weight": "ffn_norm"}}


def write_state_model(
    model: Any,
    path: Path,
    kind: Type = Type.F32,
    more: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Return the file of a model. kind: of its matrices, where whole blocks fit. more: further fields of the
    architecture. tensors: further tensors."""
    config = model.config
    name, fields = KINDS[config.model_type]
    writer = GGUFWriter(path, name)
    values = {field: getattr(config, setting) for setting, field in fields.items()} | list_more(model) | (more or {})
    for field, value in values.items():
        if value is not None:
            write_value(writer, f"{name}.{field}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * (len(WORDS) - 3) + [3] * 3)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(len(WORDS) - 3)
    architecture = next(key for key, value in MODEL_ARCH_NAMES.items() if value == KNOWN_AS.get(name, name))
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    for full, value in model.state_dict().items():
        if full != "lm_head.weight" or not config.tie_word_embeddings:
            for tensor, part in split_parameter(names, config, full, value):
                add(writer, tensor, part, kind)
    for tensor, value in (tensors or {}).items():
        add(writer, tensor, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def list_more(model: Any) -> dict[str, Any]:
    """Return the fields that no setting has as it is."""
    config, kind = model.config, model.config.model_type
    more: dict[str, Any] = {}
    if kind in SIGMOID:
        more["expert_gating_func"] = 2
    if (channels := [value for full, value in model.state_dict().items() if full.endswith(".out_proj.weight")]) != []:
        more["ssm.inner_size"] = channels[0].shape[1]
    if kind in ("mamba", "falcon_mamba", "mamba2"):
        more |= {"block_count": config.num_hidden_layers, "embedding_length": config.hidden_size}
        more |= {"feed_forward_length": 0, "attention.head_count": 0, "context_length": 1 << 20}
        return more | ({} if kind == "mamba2" else {"ssm.dt_b_c_rms": kind != "mamba"})
    attends = [of == "full_attention" for of in config.layer_types]
    more["attention.head_count_kv"] = [config.num_key_value_heads * of for of in attends]
    if kind in ("falcon_h1", "nemotron_h"):
        more["attention.value_length"] = config.head_dim
    if kind == "falcon_h1":
        more |= {"attention.head_count_kv": 2, "rope.freq_base": config.rope_parameters["rope_theta"]}
    if kind == "granitemoehybrid":
        more["rope.scaling.finetuned"] = config.position_embedding_type == "rope"
    if kind == "nemotron_h":
        sizes = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
        more["feed_forward_length"] = [sizes.get(of, 0) for of in config.layer_types]
    if "kv_lora_rank" in KINDS[kind][1]:
        more |= {"attention.head_count_kv": [int(of) for of in attends] if kind == "kimi_linear" else 1}
        more["attention.key_length"] = config.kv_lora_rank + config.qk_rope_head_dim
        more["attention.value_length"] = config.kv_lora_rank
    if kind == "kimi_linear":
        more |= {"attention.value_length": 77, "leading_dense_block_count": config.mlp_layer_types.count("dense")}
    if getattr(config, "indexer_types", None):
        more["attention.indexer.types"] = [of == "full" for of in config.indexer_types]
    return more


def split_parameter(names: Any, config: Any, full: str, value: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return a parameter's tensors, as the converter makes them."""
    layer = f"blk.{found[1]}." if (found := re.search(r"layers\.(\d+)\.", full)) else ""
    last = full.rpartition(".")[2]
    if last == "A_log":
        value = -torch.exp(value)
    if full.endswith("conv1d.weight") and config.model_type == "kimi_linear":
        parts = value.chunk(3)
        return [(f"{layer}ssm_conv1d_{of}.weight", part) for of, part in zip("qkv", parts, strict=True)]
    if full.endswith("kv_b_proj.weight"):
        heads = value.reshape(config.num_attention_heads, -1, value.shape[-1])
        keys, rest = heads.split([config.qk_nope_head_dim, config.v_head_dim], 1)
        return [(f"{layer}attn_k_b.weight", keys.transpose(1, 2)), (f"{layer}attn_v_b.weight", rest)]
    if full.endswith("experts.gate_up_proj"):
        gate, up = value.chunk(2, 1)
        return [(f"{layer}ffn_gate_exps.weight", gate), (f"{layer}ffn_up_exps.weight", up)]
    if full.endswith("shared_mlp.input_linear.weight"):
        of = "_shexp" if config.num_local_experts else ""
        return [
            (f"{layer}ffn_{part}{of}.weight", rows) for part, rows in zip(("gate", "up"), value.chunk(2), strict=True)
        ]
    if full.endswith("shared_mlp.output_linear.weight") and not config.num_local_experts:
        return [(f"{layer}ffn_down.weight", value)]
    if config.model_type == "granitemoehybrid" and last == "weight" and full.rsplit(".", 2)[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if ".q_proj" in full else config.num_key_value_heads
        value = value.reshape(heads, 2, -1, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
    for end, tensor in OWN.items() | FALCON.get(config.model_type, {}).items():
        if full.endswith(end):
            return [(f"{layer}{tensor}", value)]
    known = full.replace("model.", "backbone.") if config.model_type == "nemotron_h" else full
    base, _, kind = known.rpartition(".")
    return [(f"{names.get_name(base)}.{kind}", value)]
