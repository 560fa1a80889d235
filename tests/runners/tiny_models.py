"""Tiny random checkpoints with head shapes of real models, one per kind of layer that is not plain attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tailrace.models.auto_class import find_auto_class

t: Any = transformers
VOCAB = 211
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
SEEING: dict[str, Any] = {  # the part that sees
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
HEADS: dict[str, Any] = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 64}
MLA: dict[str, Any] = {
    **HEADS,
    "q_lora_rank": 48,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
SSM2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [1.0 + 0.7 * i for i in range(8)],
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "original_max_position_embeddings": 48,
}
# of an indexer: with many heads few scores are exactly 0, and transformers takes any of equal ones
SPARSE = {"index_topk": 12, "index_n_heads": 16, "index_head_dim": 96}
GEMMA_TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def _llama4() -> Any:
    return t.Llama4TextConfig(
        **COMMON,
        head_dim=32,
        attention_chunk_size=24,
        no_rope_layers=[1, 1, 1, 0],
        layer_types=["chunked_attention"] * 3 + ["full_attention"],
        attn_temperature_tuning=True,
        floor_scale=16,
        attn_scale=0.5,
        num_local_experts=2,
        interleave_moe_layer_step=2,
        intermediate_size_mlp=96,
    )


MODELS: dict[str, Any] = {
    "gpt-oss": lambda: t.GptOssConfig(
        **COMMON, head_dim=64, sliding_window=16, num_local_experts=4, num_experts_per_tok=2
    ),
    "deepseek-v2": lambda: t.DeepseekV2Config(**(COMMON | MLA)),
    "deepseek-v3": lambda: t.DeepseekV3Config(**(COMMON | MLA)),
    "deepseek-v3.2": lambda: t.DeepseekV32Config(**(COMMON | MLA | SPARSE)),
    "glm-5": lambda: t.GlmMoeDsaConfig(**(COMMON | MLA | SPARSE)),
    "glm-4.7-flash": lambda: t.Glm4MoeLiteConfig(**(COMMON | MLA | {"qk_nope_head_dim": 192, "v_head_dim": 256})),
    "phi3, long rope": lambda: t.Phi3Config(**COMMON, rope_parameters=LONG),
    "llama, dynamic rope": lambda: t.LlamaConfig(
        **COMMON, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "llama4 text": _llama4,
    "gemma3 text": lambda: t.Gemma3TextConfig(
        **COMMON, head_dim=32, sliding_window=16, layer_types=GEMMA_TYPES, tie_word_embeddings=False
    ),
    "gemma3n text": lambda: t.Gemma3nTextConfig(
        **(COMMON | {"intermediate_size": [96] * 4, "activation_sparsity_pattern": [0.0] * 4}),
        head_dim=32,
        sliding_window=16,
        layer_types=GEMMA_TYPES,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=16,
        tie_word_embeddings=False,
        vocab_size_per_layer_input=VOCAB,
        laurel_rank=8,
    ),
    "gemma4 text": lambda: t.Gemma4TextConfig(
        **COMMON,
        head_dim=32,
        global_head_dim=64,
        sliding_window=16,
        layer_types=GEMMA_TYPES,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=16,
        tie_word_embeddings=False,
        vocab_size_per_layer_input=VOCAB,
    ),
    "qwen3-next": lambda: t.Qwen3NextConfig(**COMMON, **DELTA, **MOE, shared_expert_intermediate_size=32),
    "qwen3.5": lambda: t.Qwen3_5TextConfig(**COMMON, **DELTA),
    "qwen4-exp": lambda: t.Qwen4ExpTextConfig(
        **COMMON | {"eos_token_id": 2, "layer_types": ["linear_attention", "indexed_attention"] * 2},
        **{name: value for name, value in DELTA.items() if name != "layer_types"},
        **MOE,
        shared_expert_intermediate_size=32,
        hc_lowrank=16,
        ple_layer_ids=[1, 3],
        heads_per_ngram=2,
        ngram_vocab_size_base=100,
        split_ngram_parts=4,
        indexer_n_heads=16,
        indexer_kv_heads=1,
        indexer_head_dim=32,
        indexer_budget=16,
        indexer_compress_ratio=4,
    ),
    "kimi linear": lambda: t.KimiLinearConfig(
        **(COMMON | HEADS | {"num_key_value_heads": 4}),
        q_lora_rank=None,
        moe_intermediate_size=32,
        num_local_experts=8,
        num_experts_per_tok=2,
        linear_head_dim=32,
        linear_num_heads=4,
        layer_types=DELTA["layer_types"],
    ),
    "longcat flash": lambda: t.LongcatFlashConfig(
        **HEADS,
        vocab_size=VOCAB,
        hidden_size=64,
        num_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        eos_token_id=None,
        q_lora_rank=48,
        ffn_hidden_size=96,
        expert_ffn_hidden_size=32,
        n_routed_experts=4,
        zero_expert_num=2,
        moe_topk=2,
    ),
    "olmo hybrid": lambda: t.OlmoHybridConfig(**COMMON, **DELTA),
    "minimax": lambda: t.MiniMaxConfig(
        **COMMON,
        layer_types=["linear_attention", "full_attention"] * 2,
        block_size=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "lfm2": lambda: t.Lfm2Config(**COMMON, layer_types=["conv", "full_attention", "conv", "full_attention"]),
    "granite 4": lambda: t.GraniteMoeHybridConfig(
        **COMMON,
        **SSM2,
        layer_types=["mamba", "attention", "mamba", "mamba"],
        shared_intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        position_embedding_type="nope",
    ),
    "bamba": lambda: t.BambaConfig(**COMMON, **SSM2, attn_layer_indices=[1]),
    "falcon h1": lambda: t.FalconH1Config(**COMMON, **SSM2, mamba_d_ssm=128, head_dim=16),
    "nemotron h": lambda: t.NemotronHConfig(
        **COMMON,
        layers_block_type=["mamba", "attention", "moe", "mamba"],
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=2,
        chunk_size=8,
        head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=32,
        n_group=1,
        topk_group=1,
    ),
    "mamba": lambda: t.MambaConfig(
        vocab_size=VOCAB, hidden_size=32, state_size=8, num_hidden_layers=2, pad_token_id=0, eos_token_id=None
    ),
    "mamba, wide steps": lambda: t.MambaConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, time_step_rank=32, pad_token_id=0, eos_token_id=None
    ),
    "falcon mamba": lambda: t.FalconMambaConfig(
        vocab_size=VOCAB, hidden_size=32, state_size=8, num_hidden_layers=2, pad_token_id=0, eos_token_id=None
    ),
    "mamba2": lambda: t.Mamba2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
        num_hidden_layers=2,
        chunk_size=8,
        pad_token_id=0,
        eos_token_id=None,
    ),
    "jamba": lambda: t.JambaConfig(
        **COMMON,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        num_experts=2,
        use_mamba_kernels=False,
        mamba_d_state=8,
        mamba_dt_rank=8,
    ),
    "mistral 3": lambda: t.Mistral3Config(
        text_config=t.MistralConfig(**COMMON, head_dim=16, sliding_window=8),
        vision_config={"model_type": "pixtral", **SEEING},
        image_token_index=10,
    ),
    "glm 5.3": lambda: t.Glm5NextConfig(
        text_config=t.Glm5NextTextConfig(
            **COMMON | {"num_hidden_layers": 4, "num_key_value_heads": 4},
            layer_types=["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
            mlp_layer_types=["dense", "sparse"] * 2,
            indexer_types=["full", "full", "shared", "full"],
            moe_intermediate_size=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            v_head_dim=16,
            index_head_dim=16,
            index_n_heads=16,
            index_topk=16,
            index_kpool=4,
            linear_num_heads=4,
            linear_head_dim=16,
        ),
        vision_config={"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64},
    ),
}


def save(name: str, folder: Path) -> Path:
    """A random model of the kind."""
    torch.manual_seed(1)
    config = MODELS[name]()
    model = find_auto_class(config).from_config(config)
    for part, parameter in model.named_parameters():
        if parameter.dim() > 1 and "A_log" not in part and "conv" not in part:
            torch.nn.init.normal_(parameter, std=0.2)
        elif part.endswith(("sinks", "ple.conv1d.weight")):  # transformers makes the latter zeros
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder
