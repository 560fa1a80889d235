"""A tiny random checkpoint of any causal architecture: its config shrunk by a table of field names, its weights random
and large enough that attention decides tokens.

Windows, chunks and the lengths from which a rotary embedding changes are so short that prompts of JUDGED_TOKENS cross
them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from tailrace.models.auto_class import find_auto_class

VOCAB = 300
LAYERS = 4
WINDOW = 8  # sliding window
CHUNK = 16  # of chunked attention
POSITIONS = 512
ROPE_BOUNDARY = 32  # from here on a long rope uses its other factors
STD = 0.15  # of a matrix: with it attention is neither flat nor on one token

# Field → value, of every config that has the field.
SHRUNK: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), VOCAB),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), LAYERS
    ),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("ffn_hidden_size", "intermediate_size_mlp", "dff", "dim_ff"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 48),
    **dict.fromkeys(("prefix_dense_intermediate_size", "expert_ffn_hidden_size"), 48),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("swa_num_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "dim_head", "kv_channels", "global_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), POSITIONS),
    **dict.fromkeys(("sliding_window", "window_size", "sliding_window_size", "attention_window_size"), WINDOW),
    "attention_chunk_size": CHUNK,
    "floor_scale": CHUNK,  # positions between two temperatures
    "original_max_position_embeddings": ROPE_BOUNDARY,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 32),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("index_head_dim",), 16),
    **dict.fromkeys(("index_n_heads",), 16),  # with few heads many scores are 0, and transformers takes any of them
    **dict.fromkeys(("index_topk",), 16),
    **dict.fromkeys(("mamba_d_state", "state_size", "mamba_d_head", "mamba_head_dim", "ssm_state_size"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_n_groups",), 1),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "lru_width"), 16),
    **dict.fromkeys(("hidden_size_per_layer_input",), 16),
    "is_decoder": True,
    "add_cross_attention": False,
    "use_cache": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "use_mambapy": False,
}
LATENT = {"head_dim": SHRUNK["qk_rope_head_dim"], "num_key_value_heads": SHRUNK["num_attention_heads"]}


def architectures() -> dict[str, str]:
    """Model type → class, of all causal language models in the installed transformers, and of those that also see."""
    found = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES | MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return dict(sorted(found.items()))


def shrunk(kind: type[Any], own: dict[str, Any]) -> dict[str, Any]:
    """Arguments for a config class: the fields of SHRUNK that it has, then the architecture's own. A dictionary in
    `own` under the name of a sub-config is `own` of that."""
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in SHRUNK.items() if name in fields}
    if (
        "qk_rope_head_dim" in fields
    ):  # latent attention: the head size is that of the part that turns, and no heads share
        values |= {name: value for name, value in LATENT.items() if name in fields}
    for name, part in getattr(kind, "sub_configs", {}).items():
        said: dict[str, Any] = {}
        if part is AutoConfig:
            said["model_type"] = kind.sub_configs_defaults[name].model_type
            part = CONFIG_MAPPING[said["model_type"]]
        if name in fields and dataclasses.is_dataclass(part):
            values[name] = said | shrunk(part, own.get(name, {}))
    return values | {name: value for name, value in own.items() if name not in getattr(kind, "sub_configs", {})}


def tiny_config(model_type: str, own: dict[str, Any]) -> Any:
    """The shrunk config of an architecture. own: fields that differ from SHRUNK; None deletes one."""
    kind = CONFIG_MAPPING[model_type]
    values = shrunk(kind, own)
    return kind(**{name: value for name, value in values.items() if value is not DROP})


DROP = object()  # as a value in `own`: the class's own default


def randomise(model: torch.nn.Module, std: float) -> None:
    """Every parameter anew: matrices from N(0, std²), vectors near what they are."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1 and "conv" not in name and "A_log" not in name:
            parameter.data = (noise * std).to(parameter.dtype)
        else:
            parameter.data = parameter.data + (noise * 0.1).to(parameter.dtype)


def write(model_type: str, own: dict[str, Any], folder: Path, std: float = STD) -> None:
    """Write the checkpoint into `folder`."""
    config = tiny_config(model_type, own)
    torch.manual_seed(3)
    model = find_auto_class(config).from_config(config, dtype=torch.float32)
    randomise(model, std)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    if model.config.model_type not in architectures():  # the text part of a model that sees: as in its checkpoints
        config.save_pretrained(folder)
