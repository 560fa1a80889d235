"""What is judged: every architecture, with the fields that its config needs beyond tiny.SHRUNK, and variants of some
whose fields choose other layers."""

from __future__ import annotations

from typing import Any

from architectures.tiny import DROP, ROPE_BOUNDARY, WINDOW, architectures

ROPE = {"rope_theta": 10_000.0}
HALF = ["sliding_attention", "full_attention"] * 2

HYBRID = ["linear_attention", "hybrid"] * 2
QSA = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [1, 3],
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 100,
    "split_ngram_parts": 4,
}
CONV = ["conv", "full_attention"] * 2
LFM3 = ["conv", "full_attention", "conv", "sliding_attention"]
INKLING = ["hybrid_sliding", "hybrid"] * 2
SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_n_heads": 2}
EIGHT, FOUR, ERNIE, HUNYUAN = (
    {"text_config": {"rope_parameters": {"rope_type": "default", **ROPE, "mrope_section": sections}}}
    for sections in ([2, 3, 3], [1, 1, 2], [3, 3, 2], [2, 2, 2, 2])
)
AUDIO = {"adapter_input_size": 64}
DRAFTER = "a drafter: it reads the cache of the Gemma 4 it drafts for and can't answer alone"

# Architectures that can't be built here, and why.
UNMADE = {
    "gemma3n": "its vision tower is timm's, a package that is not in the lock file (gemma3n_text is judged)",
    "gemma4_assistant": DRAFTER,
    "gemma4_unified_assistant": DRAFTER,
}

# Architecture → fields without which its tiny config can't be built.
REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "mamba2": {"num_heads": 8},
    "zamba": {"layers_block_type": HYBRID, "n_mamba_heads": 2},
    "zamba2": {"layers_block_type": HYBRID},
    "zaya": {"num_experts_per_tok": 1},
    "qwen4_exp_text": QSA,
    "qwen4_exp": {"text_config": QSA},
    **dict.fromkeys(("glm4v", "glm46v", "glm_ocr", "glmga", "paddleocr_vl", "cosmos3_edge"), EIGHT),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker"), EIGHT),
    **dict.fromkeys(("glm4v_moe", "hy_v4_vl"), FOUR),
    "ernie4_5_vl_moe": {"text_config": {**ERNIE["text_config"], "moe_intermediate_size": [48, 48]}},
    "hunyuan_vl": HUNYUAN,
    "molmo2": {"adapter_config": {"vision_feature_layer": [3, 2]}},
    "muse_spark": {"audio_config": {"out_hidden_size": 64}},
    "granite_docling": {"vision_config": {"out_hidden_size": 64}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    **{
        name: {"vision_config": {"text_hidden_size": 64}, "text_config": {"layer_types": INKLING}}
        for name in ("inkling2", "inkling2_loop")
    },
    "inkling_mm_model": {"text_config": {"layer_types": INKLING}},
    "cohere_compass": {
        "text_config": {"rope_parameters": {kind: {**ROPE, "rope_type": "default"} for kind in HALF[:2]}}
    },
    "glm5_next": {
        "text_config": {
            "qk_rope_head_dim": 0,
            "layer_types": ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse"] * 2,
            "indexer_types": ["full", "full", "shared", "full"],
            "index_kpool": 4,
            "linear_num_heads": 4,
            "linear_head_dim": 16,
        }
    },
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [16, 32], "attn_layers": ["local", "lsh"] * 2},
    "xlstm": {"chunkwise_kernel": "chunkwise--native_autograd", "qk_dim_factor": 1.0},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "dots3_note": {"vision_config": {"mlp_layer_types": ["dense"] * 4, "adapter_in_dim": 64}, "audio_config": AUDIO},
    "blt": {"encoder_hash_byte_group_vocab": 501},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 1, "layer_types": HALF},
    "granitemoehybrid": {"layer_types": ["mamba", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": CONV},
    "lfm2_moe": {"layer_types": CONV, "num_dense_layers": 1},
    "lfm2_vl": {"text_config": {"layer_types": CONV}},
    "lfm3": {"layer_types": LFM3},
    "lfm3_vl": {"text_config": {"layer_types": LFM3}},
    "minimax_m3_vl": {"text_config": SPARSE},
    **{name: {"layer_types": HALF} for name in ("laguna", "mellum", "dots1", "kolibri1")},
    **{name: {"layer_types": INKLING} for name in ("inkling_text", "inkling2_text", "inkling2_loop_text")},
    "gemma3": {"text_config": {"layer_types": HALF}},
    "step3p7": {"text_config": {"layer_types": HALF}},
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 2, "layer_group_size": 2},
    "cohere_compass_text": {"rope_parameters": {kind: {**ROPE, "rope_type": "default"} for kind in HALF[:2]}},
}

# Architecture → variant → fields.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "tied, biases": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        "rope linear": {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 4.0}},
        "rope dynamic": {"rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 4.0}},
        "rope yarn": {
            "rope_parameters": {
                **ROPE,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": ROPE_BOUNDARY,
            }
        },
        "rope llama3": {
            "rope_parameters": {
                **ROPE,
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": ROPE_BOUNDARY,
            }
        },
    },
    "phi3": {
        "rope longrope": {
            "original_max_position_embeddings": ROPE_BOUNDARY,
            "rope_parameters": {
                **ROPE,
                "rope_type": "longrope",
                "factor": 16.0,
                "original_max_position_embeddings": ROPE_BOUNDARY,
                "short_factor": [1.0 + 0.1 * i for i in range(8)],
                "long_factor": [2.0 + 0.5 * i for i in range(8)],
            },
        },
        "no window": {"sliding_window": None},
    },
    "mistral": {"no window": {"sliding_window": None}},
    "qwen2": {"window": {"use_sliding_window": True, "max_window_layers": 1}},
    "qwen3": {"window": {"use_sliding_window": True, "max_window_layers": 1}},
    "qwen2_moe": {"window": {"use_sliding_window": True, "max_window_layers": 1}},
    "qwen3_moe": {"window": {"use_sliding_window": True, "max_window_layers": 1}},
    "starcoder2": {"no window": {"sliding_window": None}},
    "mixtral": {"no window": {"sliding_window": None}},
    "phimoe": {"no window": {"sliding_window": None}},
    "cohere": {"qk norm": {"use_qk_norm": True}},
    "stablelm": {"qk norm, parallel": {"qk_layernorm": True, "use_parallel_residual": True}},
    "gpt_neox": {"sequential": {"use_parallel_residual": False}},
    "gpt2": {"scaled by layer": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": False}},
    "falcon": {
        "alibi": {"alibi": True},
        "new decoder": {"new_decoder_architecture": True},
        "sequential, all heads": {"parallel_attn": False, "multi_query": False, "num_kv_heads": 4},
    },
    "olmo": {"clipped": {"clip_qkv": 0.5}},
    "opt": {"post norm": {"do_layer_norm_before": False}},
    "gpt_bigcode": {"all heads": {"multi_query": False}},
    "deepseek_v3": {"no q rank": {"q_lora_rank": None}},
    "gemma2": {"window everywhere": {"layer_types": ["sliding_attention"] * 4}},
    "gemma3_text": {"half windows": {"layer_types": HALF}},
    "granitemoehybrid": {
        "attention only": {"layer_types": ["full_attention"] * 4},
    },
    "minimax_m3_vl_text": {"sparse": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_n_heads": 2}},
    "llama4_text": {
        "full attention": {"layer_types": ["full_attention"] * 4},
        "no temperature": {"attn_temperature_tuning": False},
    },
}


def variants(only: tuple[str, ...] = ()) -> list[tuple[str, str, dict[str, Any]]]:
    """(model type, variant, fields). only: of these types."""
    found = []
    for model_type in architectures():
        if only and model_type not in only:
            continue
        own = REQUIRED_FIELDS.get(model_type, {})
        found.append((model_type, "", own))
        found += [(model_type, name, own | fields) for name, fields in VARIANTS.get(model_type, {}).items()]
    return found


__all__ = ["DROP", "REQUIRED_FIELDS", "UNMADE", "VARIANTS", "WINDOW", "variants"]
