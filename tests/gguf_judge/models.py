"""The tiny models: random weights, a name for each kind of rotary embedding, head size, tying and mixture.

(More than 300 lines: one table.)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from gguf_judge.hybrids import HYBRIDS, publish_folder

t: Any = transformers
WORDS = [*sorted(ByteLevel.alphabet()), "ĠĠ", "<|endoftext|>", "<|user|>", "<|end|>"]
VOCAB = len(WORDS)
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "pad_token_id": None,
    "bos_token_id": VOCAB - 3,
    "eos_token_id": VOCAB - 3,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
TIED = {"tie_word_embeddings": True}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LATENT: dict[str, Any] = {
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "kv_lora_rank": 64,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.3,
    "logits_scaling": 4.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
DELTA: dict[str, Any] = {
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}


def longrope(head: int, **more: Any) -> dict[str, Any]:
    """LongRoPE for heads of this size."""
    half = head // 2
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "long_factor": [1.0 + 0.9 * i for i in range(half)],
        "short_factor": [1.0 + 0.05 * i for i in range(half)],
        "original_max_position_embeddings": 1024,
        **more,
    }


def plain(theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **more}


def layers(full: dict[str, Any], local: float) -> dict[str, Any]:
    return {"full_attention": full, "sliding_attention": plain(local)}


# name: (class of the configuration, its settings)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": plain(500000.0)}),
    "llama llama3": ("Llama", {"rope_parameters": LLAMA3} | TIED),
    "llama linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama yarn": ("Llama", {"rope_parameters": YARN}),
    "llama yarn attention": ("Llama", {"rope_parameters": YARN | {"attention_factor": 1.05}}),
    "llama dynamic": ("Llama", {"rope_parameters": plain() | {"rope_type": "dynamic", "factor": 2.0}}),
    "llama head 48": ("Llama", {"head_dim": 48, "rope_parameters": LLAMA3}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": plain()}),
    "mistral": ("Mistral", {"head_dim": 64, "sliding_window": None, "rope_parameters": plain(1000000.0)}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": plain(1000000.0)}),
    "ministral3": (
        "Ministral3",
        {"head_dim": 48, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
    ),
    "qwen2": ("Qwen2", {"rope_parameters": plain(1000000.0)}),
    "qwen2 yarn": ("Qwen2", {"rope_parameters": YARN} | TIED),
    "qwen3": ("Qwen3", {"head_dim": 128, "rope_parameters": plain(1000000.0)}),
    "qwen3 head 64": ("Qwen3", {"head_dim": 64, "rope_parameters": plain(1000000.0)} | TIED),
    "qwen3 yarn": ("Qwen3", {"head_dim": 64, "rope_parameters": YARN}),
    "qwen2moe": ("Qwen2Moe", EXPERTS | {"shared_expert_intermediate_size": 96, "norm_topk_prob": False}),
    "qwen3moe": ("Qwen3Moe", EXPERTS | {"head_dim": 64, "norm_topk_prob": True, "rope_parameters": plain(1000000.0)}),
    "qwen3moe yarn": ("Qwen3Moe", EXPERTS | {"head_dim": 48, "norm_topk_prob": True, "rope_parameters": YARN}),
    "gemma": ("Gemma", {"head_dim": 48} | TIED),
    "gemma2": ("Gemma2", {"head_dim": 48, "query_pre_attn_scalar": 48, "sliding_window": 40} | TIED),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 40, "num_hidden_layers": 7}
        | {"rope_parameters": layers(plain(1000000.0), 10000.0)}
        | TIED,
    ),
    "gemma3 linear": (
        "Gemma3Text",
        {"head_dim": 48, "query_pre_attn_scalar": 48, "sliding_window": 40, "num_hidden_layers": 7}
        | {"rope_parameters": layers(LINEAR | {"rope_theta": 1000000.0, "factor": 8.0}, 10000.0)}
        | TIED,
    ),
    "phi3": ("Phi3", {"rope_parameters": plain(original_max_position_embeddings=8192)}),
    "phi3 longrope": ("Phi3", {"rope_parameters": longrope(32), "original_max_position_embeddings": 1024}),
    "phi3 partial longrope": (
        "Phi3",
        {"rope_parameters": longrope(24, partial_rotary_factor=0.75), "original_max_position_embeddings": 1024} | TIED,
    ),
    "gpt-oss": (
        "GptOss",
        {"head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 40}
        | {"rope_parameters": YARN | {"rope_theta": 150000.0, "truncate": False}},
    ),
    "granite": (
        "Granite",
        GRANITE | TIED,
    ),
    "olmo2": ("Olmo2", {"rope_parameters": plain(500000.0)}),
    "olmo3": ("Olmo3", {"sliding_window": 40, "rope_parameters": layers(YARN | {"rope_theta": 500000.0}, 500000.0)}),
    "smollm3": ("SmolLM3", {"rope_parameters": plain(2000000.0)} | TIED),
    "deepseek2 lite": (
        "DeepseekV2",
        LATENT
        | {
            "num_hidden_layers": 26,
            "q_lora_rank": None,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
        }
        | {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707, "rope_theta": 10000.0}},
    ),
    "deepseek2 v3": (
        "DeepseekV3",
        LATENT
        | {"q_lora_rank": 48, "scoring_func": "sigmoid", "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5}
        | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0}},
    ),
    "glm4": ("Glm4", {"head_dim": 32, "rope_parameters": plain(partial_rotary_factor=0.5)}),
    "glm4moe": (
        "Glm4Moe",
        {"head_dim": 32, "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1, "use_qk_norm": True}
        | {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "n_group": 1}
        | {"topk_group": 1, "attention_bias": True, "rope_parameters": plain(partial_rotary_factor=0.5)},
    ),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "rope_parameters": plain(partial_rotary_factor=0.25)}),
    "starcoder2": ("Starcoder2", {"rope_parameters": plain(100000.0)} | TIED),
    "nemotron": ("Nemotron", {"rope_parameters": plain(partial_rotary_factor=0.5)}),
    "command-r": ("Cohere", {"logit_scale": 0.25, "rope_parameters": plain(75000.0)} | TIED),
    "cohere2": (
        "Cohere2",
        {"logit_scale": 0.25, "rotary_pct": 1.0, "sliding_window": 40, "rope_parameters": plain(50000.0)} | TIED,
    ),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": False, "num_key_value_heads": 4}),
    "seed_oss": ("SeedOss", {"head_dim": 32, "attention_bias": True, "attention_out_bias": False}),
    "arcee": ("Arcee", {"head_dim": 32, "rope_parameters": YARN}),
    "lfm2": (
        "Lfm2",
        {"intermediate_size": 192, "block_auto_adjust_ff_dim": False, "rope_parameters": plain(1000000.0)}
        | {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
        | TIED,
    ),
    "qwen35": ("Qwen3_5Text", DELTA | TIED),
    "qwen35moe": ("Qwen3_5MoeText", DELTA | EXPERTS | {"shared_expert_intermediate_size": 96}),
    "gemma4": (
        "Gemma4Text",
        {"head_dim": 32, "global_head_dim": 64, "sliding_window": 40, "num_hidden_layers": 12}
        | {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 4}
        | {"final_logit_softcapping": 30.0, "use_double_wide_mlp": True}
        | TIED,
    ),
    "exaone4": (
        "Exaone4",
        {"head_dim": 32, "sliding_window": 40, "rope_parameters": LLAMA3}
        | {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    ),
    "exaone4 full": (
        "Exaone4",
        {"head_dim": 32, "sliding_window": None, "rope_parameters": LLAMA3, "layer_types": ["full_attention"] * 4}
        | TIED,
    ),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 32, "rope_parameters": plain(11158840.0)} | TIED),
    "gpt2": ("GPT2", {"n_ctx": 8192, "n_inner": 512} | TIED),
    "minimax-m2": (
        "MiniMaxM2",
        {"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "scoring_func": "sigmoid"}
        | {"rope_parameters": plain(5000000.0, partial_rotary_factor=0.5), "rotary_dim": 16},
    ),
    "granitemoe": ("GraniteMoe", {"num_local_experts": 4, "num_experts_per_tok": 2} | GRANITE | TIED),
    "granitemoe shared": (
        "GraniteMoeShared",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 96} | GRANITE,
    ),
    "qwen3next": (
        "Qwen3Next",
        DELTA
        | EXPERTS
        | {"shared_expert_intermediate_size": 96, "linear_num_value_heads": 8, "linear_value_head_dim": 16}
        | {"norm_topk_prob": True, "rope_parameters": plain(10000000.0, partial_rotary_factor=0.5)},
    ),
    "lfm2moe": (
        "Lfm2Moe",
        EXPERTS
        | {"num_dense_layers": 1, "norm_topk_prob": True, "use_expert_bias": True, "rope_parameters": plain(1000000.0)}
        | {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
        | TIED,
    ),
    "llama4": (
        "Llama4Text",
        {"head_dim": 32, "intermediate_size": 64, "intermediate_size_mlp": 192, "num_local_experts": 4}
        | {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "rope_parameters": LLAMA3},
    ),
    "hunyuan-moe": (
        "HunYuanMoEV1",
        {"head_dim": 32, "num_experts": 4, "moe_topk": [2] * 4, "num_shared_expert": [1] * 4, "intermediate_size": 64}
        | {"moe_intermediate_size": [64] * 4, "rope_parameters": plain(11158840.0)}
        | TIED,
    ),
    "dots1": (
        "Dots1",
        {"head_dim": 32, "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1}
        | {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "topk_group": 1}
        | {"norm_topk_prob": True, "sliding_window": None, "rope_parameters": plain(10000000.0)},
    ),
    "ernie4_5-moe": (
        "Ernie4_5_Moe",
        {"head_dim": 32, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 2}
        | {"moe_layer_start_index": 1, "use_bias": False, "rope_parameters": plain(500000.0)}
        | TIED,
    ),
    "phi2": (
        "Phi",
        {"intermediate_size": 512, "num_key_value_heads": 4, "rope_parameters": plain(partial_rotary_factor=0.5)},
    ),
    "olmo": ("Olmo", {"clip_qkv": 2.0, "rope_parameters": plain()}),
    "ernie4_5": ("Ernie4_5", {"head_dim": 32, "rope_parameters": plain(500000.0)} | TIED),
    **HYBRIDS,
}


def make_model(name: str, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The model, in float32. more: further settings."""
    kind, settings = MODELS[name]
    config = getattr(t, f"{kind}Config")(**(COMMON | settings | more))
    torch.manual_seed(0)
    model = t.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for path, value in model.state_dict().items():
            if value.dim() > 1 and "bias" not in path:
                value.copy_(torch.randn_like(value) / value.shape[-1] ** 0.5)
            elif value.dtype == torch.float32:
                value.add_(torch.randn_like(value) * 0.2)
    return model


def make_folder(name: str, folder: Path, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Write the folder of a model → the model."""
    model = make_model(name, more)
    model.save_pretrained(folder)
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(BPE(words, [("Ġ", "Ġ")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    fast = t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": WORDS[-3:]})
    fast.save_pretrained(folder)
    publish_folder(folder)
    return model
