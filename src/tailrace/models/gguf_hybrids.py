"""Readers of a GGUF file's fields for models whose layers differ: short convolutions, gated delta nets, heads of two
sizes; and for keys of two parts. Part of convert.py's process; knows nothing of weights.
"""

from __future__ import annotations

import numpy as np

from tailrace.models.gguf_fields import Fields, are_flags, is_count
from tailrace.models.gguf_readers import FINAL_CAP, FULL, LOCAL_THETA, Settings, read_windows
from tailrace.models.gguf_rope import FREQUENCIES, check_sections, plain_rope, read_rope

SECTIONS = [11, 11, 10, 0]  # Qwen 3.5's numbers of frequencies for times, heights and widths
UNTURNED = 1e29  # Frequencies with a larger divisor do not turn at any position.
GEMMA4_ENDS = [1, 106, 50]  # The end, a turn's end, a tool's answer. The file has one of them.


def read_lfm2(fields: Fields, settings: Settings) -> None:
    """Read LFM2. A layer without heads of keys is a convolution."""
    settings["layer_types"] = [FULL if heads else "conv" for heads in settings["kv_heads_by_layer"]]
    settings["conv_L_cache"] = fields.size("shortconv.l_cache")
    settings["conv_bias"] = fields.has_tensor("shortconv.in_proj.bias")
    settings["block_auto_adjust_ff_dim"] = False  # the file has the adjusted size


def read_latent(fields: Fields, settings: Settings) -> None:
    """Read latent attention: a head's keys have a part that is turned and one that is not. Older files state the sizes
    of whole heads, newer ones those of the latent form too."""
    turned = fields.size("rope.dimension_count")
    rank = settings["kv_lora_rank"] = fields.size("attention.kv_lora_rank")
    key, value = fields.size("attention.key_length"), fields.size("attention.value_length")
    if fields.architecture == "kimi-linear":
        value = rank  # its files state another length, which no head has
    whole = fields.size("attention.key_length_mla", key)
    settings["v_head_dim"] = fields.size("attention.value_length_mla", value)
    if turned >= whole or (whole != key and (key, value) != (rank + turned, rank)):
        fields.refuse("attention.key_length", key)
    settings["num_key_value_heads"] = settings["num_attention_heads"]
    settings |= {"qk_rope_head_dim": turned, "qk_nope_head_dim": whole - turned, "head_dim": turned}
    settings["q_lora_rank"] = fields.count("attention.q_lora_rank", 0) or None
    if not fields.has_tensor("attn_q_a.weight"):
        settings["q_lora_rank"] = None
    settings["rope_parameters"] = read_rope(fields, turned, log_unit=0.1)


def read_delta(fields: Fields, settings: Settings) -> None:
    """Read gated delta nets, with attention in every fourth layer or where the file says."""
    layers, heads = settings["num_hidden_layers"], fields.size("ssm.time_step_rank")
    interval = fields.size("full_attention_interval", 4)
    recurrent = fields.each("attention.recurrent_layers", None)
    if recurrent is None:
        recurrent = [(layer + 1) % interval != 0 for layer in range(layers)]
    if not are_flags(recurrent, layers):
        fields.refuse("attention.recurrent_layers", recurrent)
    settings["layer_types"] = ["linear_attention" if each else FULL for each in recurrent[:layers]]
    settings["linear_conv_kernel_dim"] = fields.size("ssm.conv_kernel")
    settings["linear_key_head_dim"] = fields.size("ssm.state_size")
    settings["linear_num_key_heads"] = fields.size("ssm.group_count")
    settings["linear_num_value_heads"] = heads
    settings["linear_value_head_dim"] = fields.size("ssm.inner_size") // heads
    if heads % settings["linear_num_key_heads"]:
        fields.refuse("ssm.group_count", settings["linear_num_key_heads"])
    settings["rope_parameters"] = plain_rope(fields, settings["head_dim"])
    fields.expect("rope.scaling.type", "none", "linear")
    fields.expect("rope.scaling.factor", 1, 0)


def read_sections(fields: Fields, settings: Settings) -> None:
    """Read which frequencies are of times, heights and widths."""
    sections = fields.each("rope.dimension_sections", SECTIONS)
    if not isinstance(sections, list) or not all(is_count(section, 0) for section in sections):
        fields.refuse("rope.dimension_sections", sections)
    if 2 * sum(sections) != fields.size("rope.dimension_count", settings["head_dim"]):
        fields.refuse("rope.dimension_sections", sections)
    check_sections(fields)
    named = {"mrope_section": [section for section in sections if section], "mrope_interleaved": True}
    settings["rope_parameters"] |= named


def read_gemma4(fields: Fields, settings: Settings) -> None:
    """Read heads of two sizes, keys that layers share, embeddings of each layer. Full layers turn the first
    frequencies."""
    read_windows(fields, settings, 6)
    full, local = fields.size("attention.key_length"), fields.size("attention.key_length_swa")
    fields.expect("attention.value_length", full)
    fields.expect("attention.value_length_swa", local)
    fields.expect("rope.dimension_count_swa", local)
    settings |= {"head_dim": local, "global_head_dim": full, "eos_token_id": GEMMA4_ENDS}
    settings["final_logit_softcapping"] = fields.number("final_logit_softcapping", FINAL_CAP) or None
    settings["hidden_size_per_layer_input"] = fields.count("embedding_length_per_layer_input", 0)
    if "per_layer_token_embd.weight" in fields.tensors:
        settings["vocab_size_per_layer_input"] = fields.rows("per_layer_token_embd.weight")
    shared = settings["num_kv_shared_layers"] = fields.count("attention.shared_kv_layers", 0)
    if shared >= settings["num_hidden_layers"]:
        fields.refuse("attention.shared_kv_layers", shared)
    read_gemma4_layers(fields, settings, settings["num_hidden_layers"] - shared)
    factors = fields.read_vector(FREQUENCIES)
    factors = np.ones(full // 2) if factors is None else factors
    turned = int((factors == 1).sum())
    if len(factors) != full // 2 or (factors[:turned] != 1).any() or (factors[turned:] < UNTURNED).any():
        fields.refuse("rope.dimension_count", f"{full} with other factors in {FREQUENCIES}")
    whole = plain_rope(fields, full)
    proportional = {"rope_type": "proportional", "partial_rotary_factor": turned / len(factors)}
    theta = fields.positive("rope.freq_base_swa", LOCAL_THETA)
    settings["rope_parameters"] = {
        FULL: whole | proportional,
        "sliding_attention": {"rope_type": "default", "rope_theta": theta},
    }


def read_gemma4_layers(fields: Fields, settings: Settings, own: int) -> None:
    """Read sizes that differ between layers. own: layers with keys of their own."""
    kinds = settings["layer_types"]
    counts = {
        kind: {n for n, of in zip(settings["kv_heads_by_layer"], kinds, strict=False) if of == kind}
        for kind in set(kinds)
    }
    if any(len(each) > 1 for each in counts.values()):
        fields.refuse("attention.head_count_kv", settings["kv_heads_by_layer"])
    settings["num_key_value_heads"] = min(counts.get("sliding_attention", counts.get(FULL, {0})))
    settings["num_global_key_value_heads"] = min(counts.get(FULL, {settings["num_key_value_heads"]}))
    first = kinds.index(FULL) if FULL in kinds else 0
    settings["attention_k_eq_v"] = f"blk.{first}.attn_v.weight" not in fields.tensors
    sizes = settings["feed_forward_by_layer"]
    settings["intermediate_size"] = sizes[0]
    settings["use_double_wide_mlp"] = sizes != [sizes[0]] * len(sizes)
    if settings["use_double_wide_mlp"] and sizes != [sizes[0] * (1 + (layer >= own)) for layer in range(len(sizes))]:
        fields.refuse("feed_forward_length", sizes)
    if experts := fields.count("expert_count", 0):
        settings |= {
            "enable_moe_block": True,
            "num_experts": experts,
            "top_k_experts": fields.size("expert_used_count"),
        }
        settings["moe_intermediate_size"] = fields.size("expert_feed_forward_length")
