"""Writes a model of transformers as a GGUF file, with the fields and the tensors that llama.cpp's converter writes. The
converter itself judges in `make test-gguf`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    MODEL_ARCH_NAMES,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
)
from gguf.quants import quantize

from gguf_judge.models import WORDS

Type = GGMLQuantizationType
NAMES = {
    "mixtral": "llama",
    "mistral": "llama",
    "ministral3": "mistral3",
    "gemma3_text": "gemma3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "olmo3": "olmo2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe": "glm4moe",
    "cohere": "command-r",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "gemma4_text": "gemma4",
    "hunyuan_v1_dense": "hunyuan-dense",
    "minimax_m2": "minimax-m2",
    "granitemoeshared": "granitemoe",
    "phi": "phi2",
}
PERMUTED = ("llama", "mistral3", "granite", "smollm3", "arcee", "olmo")
SHIFTED = ("gemma", "gemma2", "gemma3", "nemotron")
# settings → the writer's method, where the setting is there and not None
METHODS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "head_count",
    "rms_norm_eps": "layer_norm_rms_eps",
    "layer_norm_eps": "layer_norm_eps",
    "norm_eps": "layer_norm_eps",
    "norm_epsilon": "layer_norm_eps",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention_scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "clip_qkv": "clamp_kqv",
}
WINDOWED = ("gemma2", "gemma3", "gpt-oss", "olmo2", "cohere2", "exaone4", "phi3")


def write_model(
    model: Any,
    path: Path,
    kind: Type = Type.F32,
    more: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> Path:
    """The file of a model. kind: of its matrices, where whole blocks fit. more: further fields of the architecture.
    tensors: further tensors."""
    config = model.config
    name = NAMES.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, name)
    for setting, method in METHODS.items():
        if (value := getattr(config, setting, None)) is not None:
            getattr(writer, f"add_{method}")(value)
    write_heads(writer, config, name)
    write_rope(writer, config, name)
    for key, value in (more or {}).items():
        write_value(writer, key if key.startswith("general.") else f"{name}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * (len(WORDS) - 3) + [3] * 3)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(len(WORDS) - 3)
    writer.add_eos_token_id(len(WORDS) - 3)
    arch = {value: key for key, value in MODEL_ARCH_NAMES.items()}[name]
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    for full, value in model.state_dict().items():
        if full == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, tensor in split(full, value, config, name):
            base, _, suffix = part.rpartition(".")
            add(writer, f"{names.get_name(base)}.{suffix}", tensor, kind)
    for full, value in (tensors or {}).items():
        add(writer, full, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rewrite(source: Path, path: Path, changes: Mapping[str, Any]) -> Path:
    """The file with other fields. changes: a value and its type, and the type of a list's entries; None: none of it."""
    reader = GGUFReader(source)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in changes:
            writer.add_key_value(name, field.contents(), *kinds_of(field))
    for name, given in changes.items():
        if given is not None:
            writer.add_key_value(name, *given)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def kinds_of(field: Any) -> tuple[Any, ...]:
    """The type of a field's value, and the type of a list's entries."""
    return (field.types[0], field.types[-1]) if field.types[0] == GGUFValueType.ARRAY else (field.types[0],)


def add(writer: GGUFWriter, name: str, tensor: torch.Tensor, kind: Type) -> None:
    values = tensor.squeeze().contiguous().numpy()
    if values.ndim > 1 and kind != Type.F32 and not name.endswith("_inp.weight") and values.shape[-1] % 32 == 0:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values.astype(np.float32))


def write_value(writer: GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    (writer.add_array if isinstance(value, list) else kinds[type(value)])(key, value)


def write_heads(writer: GGUFWriter, config: Any, name: str) -> None:
    """Heads, windows and what routers do."""
    kinds = getattr(config, "layer_types", None)
    if name == "deepseek2":
        whole = config.qk_nope_head_dim + config.qk_rope_head_dim
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(whole)
        writer.add_value_length_mla(config.v_head_dim)
        writer.add_rope_dimension_count(config.qk_rope_head_dim)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        if name not in ("granite", "phi3", "stablelm", "starcoder2") and getattr(config, "head_dim", None):
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
    if name in WINDOWED and (name != "olmo2" or kinds):
        writer.add_sliding_window(getattr(config, "sliding_window", None) or 0)
    if name == "olmo2" and kinds:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    if name == "olmo":
        writer.add_layer_norm_eps(1e-5)
    if name in ("deepseek2", "glm4moe", "dots1"):
        sigmoid = config.model_type != "deepseek_v2"
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID if sigmoid else ExpertGatingFuncType.SOFTMAX)
        if sigmoid and config.norm_topk_prob:
            writer.add_expert_weights_norm(True)
    if name in PERMUTED:
        writer.add_vocab_size(config.vocab_size)


def write_rope(writer: GGUFWriter, config: Any, name: str) -> None:
    """Rotary embeddings, with llama3's and LongRoPE's factors as tensors."""
    all_of = config.rope_parameters
    rope = all_of.get("full_attention", all_of)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kind, turned = rope.get("rope_type", "default"), int(head * rope.get("partial_rotary_factor", 1))
    writer.add_rope_freq_base(rope["rope_theta"])
    if name in PERMUTED or turned != head:
        writer.add_rope_dimension_count(turned)
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if (factor := rope.get("attention_factor")) is not None:
            writer.add_rope_scaling_yarn_attn_factor(factor)
        if (scale := rope.get("mscale_all_dim")) is not None:
            writer.add_rope_scaling_yarn_log_mul(scale * (0.1 if name == "deepseek2" else 1))
        if (beta := rope.get("llama_4_scaling_beta")) is not None:
            writer.add_attn_temperature_scale(beta)
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head))
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        ratio = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(ratio) / math.log(original)))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))


def llama3_factors(rope: dict[str, Any], head: int) -> np.ndarray:
    """The factor of each frequency: 1 for short waves, `factor` for long ones, smooth between."""
    waves = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, head, 2) / head)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((rope["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def split(full: str, value: torch.Tensor, config: Any, name: str) -> list[tuple[str, torch.Tensor]]:
    """A parameter's tensors, by the names that the model's checkpoints have."""
    base, _, last = full.rpartition(".")
    if name in PERMUTED and full.rsplit(".", 2)[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if ".q_proj" in full else config.num_key_value_heads
        return [(full, value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape))]
    if name in SHIFTED and full.endswith("norm.weight"):
        return [(full, value + 1)]
    if last == "e_score_correction_bias":
        return [(f"{base}.e_score_correction.bias", value)]
    if last == "sinks":
        return [(f"{full}.weight", value)]
    if full.endswith("kv_b_proj.weight"):
        heads = value.reshape(config.num_attention_heads, -1, value.shape[-1])
        keys, rest = heads.split([config.qk_nope_head_dim, config.v_head_dim], 1)
        return [(full.replace("kv_b", "k_b"), keys.transpose(1, 2)), (full.replace("kv_b", "v_b"), rest)]
    if ".experts." not in full:
        return [(full, value)]
    kind = "bias" if last.endswith("_bias") else "weight"
    if name == "gpt-oss":
        value = value.transpose(1, 2) if kind == "weight" else value
        gate, up = value[:, ::2], value[:, 1::2]
    else:
        gate, up = value.chunk(2, 1)
    if last.startswith("down_proj"):
        return [(f"{base}.down_proj.{kind}", value)]
    return [(f"{base}.gate_proj.{kind}", gate), (f"{base}.up_proj.{kind}", up)]
