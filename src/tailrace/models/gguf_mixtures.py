"""Readers of a GGUF file's fields for mixtures of experts. Part of convert.py's process; knows nothing of
weights."""

from __future__ import annotations

from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_readers import SIGMOID, SOFTMAX, Settings

LLAMA4_CHUNK = 8192
MAVERICK = 128


def read_dots(fields: Fields, settings: Settings) -> None:
    """Read dots1, whose routers are a sigmoid with corrections, as DeepSeek's."""
    fields.expect("expert_gating_func", SIGMOID, 0)


def read_lfm2_moe(fields: Fields, settings: Settings) -> None:
    """Read LFM2's mixture: a sigmoid with corrections, and some layers without experts at the beginning."""
    fields.expect("expert_gating_func", SIGMOID)
    settings["num_dense_layers"] = fields.count("leading_dense_block_count", 0)
    settings["use_expert_bias"] = fields.has_tensor("exp_probs_b.bias")


def read_hunyuan_moe(fields: Fields, settings: Settings) -> None:
    """Read Hunyuan's mixture. All experts, also the shared one, have the size of the dense layers."""
    size, layers = settings["moe_intermediate_size"], settings["num_hidden_layers"]
    settings["intermediate_size"] = size
    settings["moe_topk"] = [settings["num_experts_per_tok"]] * layers
    settings["num_shared_expert"] = [fields.count("expert_shared_count", 1)] * layers
    settings["moe_intermediate_size"] = [size] * layers
    fields.expect("expert_shared_feed_forward_length", size)


def read_ernie_moe(fields: Fields, settings: Settings) -> None:
    """Read ERNIE's mixture. The size of shared experts follows from their number: the converter states another one,
    which nobody reads."""
    fields.each("expert_shared_feed_forward_length", None)
    settings["moe_num_experts"] = settings.pop("num_experts")
    settings["moe_k"] = settings.pop("num_experts_per_tok")
    settings["moe_num_shared_experts"] = fields.count("expert_shared_count", 0)
    settings["moe_layer_start_index"] = fields.count("leading_dense_block_count", 0)
    settings["moe_layer_end_index"] = settings["num_hidden_layers"] - 1
    settings["moe_layer_interval"] = fields.size("interleave_moe_layer_step", 1)


def read_llama4(fields: Fields, settings: Settings) -> None:
    """Read Llama 4: layers that see chunks. No field states that Maverick, with 128 experts, has no norms of queries
    and keys."""
    settings["intermediate_size_mlp"] = settings["intermediate_size"]
    settings["intermediate_size"] = settings.pop("moe_intermediate_size")
    settings["interleave_moe_layer_step"] = fields.size("interleave_moe_layer_step")
    settings["use_qk_norm"] = settings["num_local_experts"] != MAVERICK
    settings["attention_chunk_size"] = LLAMA4_CHUNK
    fields.expect("attention.sliding_window", LLAMA4_CHUNK)


def read_minimax(fields: Fields, settings: Settings) -> None:
    """Read MiniMax, whose routers are a sigmoid with corrections, as DeepSeek's."""
    fields.expect("expert_gating_func", SIGMOID, 0)
    settings["intermediate_size"] = settings.pop("moe_intermediate_size")
    settings["rotary_dim"] = fields.count("rope.dimension_count", settings["head_dim"])


def read_granite_moe(fields: Fields, settings: Settings) -> None:
    settings["intermediate_size"] = settings.pop("moe_intermediate_size")


def read_routing(fields: Fields, settings: Settings) -> None:
    """Read routers of DeepSeek's kind: groups, a factor, shared experts after some dense layers."""
    settings["n_shared_experts"] = fields.count("expert_shared_count", 0)
    settings["first_k_dense_replace"] = fields.count("leading_dense_block_count", 0)
    settings["routed_scaling_factor"] = fields.number("expert_weights_scale", 0) or 1.0
    settings["norm_topk_prob"] = fields.flag("expert_weights_norm", False)
    settings["n_group"] = fields.count("expert_group_count", 0) or 1
    settings["topk_group"] = fields.count("expert_group_used_count", 0) or 1


def read_glm4_moe(fields: Fields, settings: Settings) -> None:
    fields.expect("expert_gating_func", SIGMOID, 0)
    settings["use_qk_norm"] = fields.has_tensor("attn_q_norm.weight")


def is_glm_flash(settings: Settings) -> bool:
    """Return whether the file is of GLM 4.7 Flash, whose first files lack `expert_gating_func`."""
    return settings["num_hidden_layers"] in (47, 48) and settings["vocab_size"] == 154880


def read_deepseek2(fields: Fields, settings: Settings) -> None:
    """Read DeepSeek V2, which has a softmax, or V3, which has a sigmoid with corrections."""
    gate, corrected = fields.count("expert_gating_func", 0), fields.has_tensor("exp_probs_b.bias")
    if not gate and corrected and not is_glm_flash(settings):  # a sigmoid in the original, and a softmax in llama.cpp
        gate = fields.size("expert_gating_func")
    gate = gate or (SIGMOID if corrected else SOFTMAX)
    if gate == SOFTMAX:
        greedy = settings["n_group"] == 1
        settings["topk_method"] = "greedy" if greedy else "group_limited_greedy"
        if settings["norm_topk_prob"]:
            fields.refuse("expert_weights_norm", True)
    elif gate == SIGMOID:
        settings |= {"model_type": "deepseek_v3", "rope_interleave": True}
    else:
        fields.refuse("expert_gating_func", gate)
