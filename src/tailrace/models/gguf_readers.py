"""Readers of a GGUF file's fields: which field becomes which setting of transformers' config, and what llama.cpp takes
for a missing one. Part of convert.py's process; knows nothing of weights.

A reader takes what it needs from the fields and changes the settings. Whatever no reader takes is refused
(gguf_fields.py), so a new field of llama.cpp is never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tailrace.models.gguf_fields import REQUIRED, Fields, are_flags, is_count
from tailrace.models.gguf_rope import check_sections, plain_rope, read_rope

Settings = dict[str, Any]
Reader = Callable[[Fields, Settings], None]
SLIDING, FULL = "sliding_attention", "full_attention"
SOFTMAX, SIGMOID = 1, 2  # gguf.constants.ExpertGatingFuncType
GEMMA_27B = {"gemma2": 46, "gemma3": 62}  # layers by which llama.cpp tells the size whose scale is another
WITHOUT_ATTENTION = ("mamba", "mamba2")
# architectures whose layers may have different sizes
DIFFERING = (
    *("lfm2", "lfm2moe", "gemma4", "granitehybrid", "jamba", "nemotron_h", "nemotron_h_moe", "kimi-linear"),
    *WITHOUT_ATTENTION,
)
MTP = (
    "deepseek2",
    "glm4moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "cohere2moe",
    "nemotron_h_moe",
    "deepseek32",
    "glm-dsa",
)  # architectures with layers that predict further tokens
BY_LAYER = ("kv_heads_by_layer", "feed_forward_by_layer")  # settings for further readers, and none of transformers'
LOCAL_THETA = 10000.0  # of sliding layers of Gemma 3 and 4, where a file states none
WINDOW, ATTENTION_CAP, FINAL_CAP = 4096, 50.0, 30.0  # of Gemma's, where a file states none
EXAONE_32B = 64  # layers


def read_common(fields: Fields, settings: Settings) -> None:
    """Read what all architectures have."""
    settings["max_position_embeddings"] = fields.size("context_length")
    layers = settings["num_hidden_layers"] = count_layers(fields)
    settings["hidden_size"] = fields.size("embedding_length")
    sizes = settings["feed_forward_by_layer"] = fields.of_layers("feed_forward_length", 0, layers)
    settings["intermediate_size"] = sizes[0]
    if fields.architecture not in DIFFERING and len(set(sizes)) > 1:
        fields.refuse("feed_forward_length", sizes)
    if fields.architecture in WITHOUT_ATTENTION:
        fields.expect("attention.head_count", 0)
        settings["kv_heads_by_layer"] = [0] * layers
    else:
        read_head_counts(fields, settings)
    settings["vocab_size"] = fields.rows("token_embd.weight")
    settings["tie_word_embeddings"] = "output.weight" not in fields.tensors
    settings["attention_bias"] = fields.has_tensor("attn_q.bias") or fields.has_tensor("attn_qkv.bias")
    settings["mlp_bias"] = fields.has_tensor("ffn_up.bias")
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        settings[f"{name}_token_id"] = fields.get_field(f"tokenizer.ggml.{key}_token_id")


def read_head_counts(fields: Fields, settings: Settings) -> None:
    """Read the heads of queries, and those of keys, which are 0 in layers without attention."""
    heads = settings["num_attention_heads"] = fields.size("attention.head_count")
    counts = fields.of_layers("attention.head_count_kv", heads, settings["num_hidden_layers"])
    settings["kv_heads_by_layer"], settings["num_key_value_heads"] = counts, max(counts)
    kinds, different = set(counts), fields.architecture in DIFFERING
    mixed = len(kinds - {0}) > 1 and fields.architecture != "gemma4"
    if not max(counts) or mixed or (len(kinds) > 1 and not different):
        fields.refuse("attention.head_count_kv", counts)


def count_layers(fields: Fields) -> int:
    """Return the layers, without those that predict further tokens."""
    further = fields.count("nextn_predict_layers", 0) if fields.architecture in MTP else 0
    layers = fields.size("block_count") - further
    if layers < 1:
        fields.refuse("nextn_predict_layers", further)
    return layers


def read_norm(fields: Fields, settings: Settings, name: str = "rms_norm_eps", key: str = "layer_norm_rms") -> None:
    """Read the constant that norms add. Some files have it under both names."""
    settings[name] = fields.positive(f"attention.{key}_epsilon")
    for other in ("layer_norm", "layer_norm_rms"):
        fields.expect(f"attention.{other}_epsilon", settings[name])


def layer_norm(name: str, key: str = "layer_norm") -> Reader:
    """Return a reader for norms whose setting has another name; without a key: norms with a mean."""
    return lambda fields, settings: read_norm(fields, settings, name, key)


def read_heads(fields: Fields, settings: Settings) -> None:
    """Read the size of a head, whose values are as long as its keys."""
    settings["head_dim"] = fields.size(
        "attention.key_length", settings["hidden_size"] // settings["num_attention_heads"]
    )
    fields.expect("attention.value_length", settings["head_dim"])


def read_one_rope(fields: Fields, settings: Settings) -> None:
    """Read one rotary embedding for all layers."""
    settings["rope_parameters"] = read_rope(fields, settings["head_dim"])
    fields.expect("rope.freq_base_swa", settings["rope_parameters"]["rope_theta"])


def read_layer_ropes(fields: Fields, settings: Settings, local: float | None = None) -> None:
    """Read the ropes. Only full-attention layers are scaled. local: base of sliding layers if the file states none."""
    full = read_rope(fields, settings["head_dim"])
    theta = float(fields.positive("rope.freq_base_swa", full["rope_theta"] if local is None else local))
    settings["rope_parameters"] = {FULL: full, SLIDING: plain_rope(fields, settings["head_dim"], theta)}


def read_windows(fields: Fields, settings: Settings, period: int, window: Any = REQUIRED) -> bool:
    """Read the sliding window, and which layers have it: the file's pattern, or all but every `period`-th. Return False
    if no layer slides. window: the size that llama.cpp takes if the file states none."""
    window = fields.count("attention.sliding_window", window)
    pattern, layers = fields.each("attention.sliding_window_pattern", period), settings["num_hidden_layers"]
    if is_count(pattern, 0):
        pattern = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers)]
    if not are_flags(pattern, layers):
        fields.refuse("attention.sliding_window_pattern", pattern)
    slides = [bool(window) and bool(each) for each in pattern[:layers]]
    settings["layer_types"] = [SLIDING if each else FULL for each in slides]
    settings["sliding_window"] = window or None
    return any(slides)


def read_gemma(fields: Fields, settings: Settings) -> None:
    """Set the scale of Gemma 2 and 3, which llama.cpp knows by the number of layers."""
    big = GEMMA_27B.get(fields.architecture) == settings["num_hidden_layers"]
    divisor = settings["hidden_size"] // settings["num_attention_heads"] if big else settings["head_dim"]
    scale = fields.number("attention.scale", 0)
    settings["query_pre_attn_scalar"] = scale**-2 if scale else divisor


def read_caps(fields: Fields, settings: Settings, attention: float, final: float) -> None:
    """Read caps of logits. attention, final: llama.cpp's, if the file states none; 0: no cap."""
    for name, default in (("attn_logit_softcapping", attention), ("final_logit_softcapping", final)):
        settings[name] = fields.number(name, default) or None


def read_gemma2(fields: Fields, settings: Settings) -> None:
    read_caps(fields, settings, ATTENTION_CAP, FINAL_CAP)
    read_windows(fields, settings, 2, WINDOW)
    read_one_rope(fields, settings)


def read_gemma3(fields: Fields, settings: Settings) -> None:
    read_caps(fields, settings, 0, 0)
    if settings["attn_logit_softcapping"]:
        fields.refuse("attn_logit_softcapping", settings["attn_logit_softcapping"])
    read_windows(fields, settings, 6, window=0)
    read_layer_ropes(fields, settings, LOCAL_THETA)


def read_olmo2(fields: Fields, settings: Settings) -> None:
    """Read Olmo 2; with windows it is Olmo 3."""
    if read_windows(fields, settings, 4, window=0):
        settings["model_type"] = "olmo3"
        read_layer_ropes(fields, settings)
    else:
        read_one_rope(fields, settings)


def read_llama(fields: Fields, settings: Settings) -> None:
    """Read a Llama; with experts it is a Mixtral."""
    if experts := fields.count("expert_count", 0):
        settings |= {"model_type": "mixtral", "num_local_experts": experts}
        settings["num_experts_per_tok"] = fields.size("expert_used_count")
        fields.expect("expert_feed_forward_length", settings["intermediate_size"])


def read_mistral3(fields: Fields, settings: Settings) -> None:
    """Read Mistral 3: Ministral 3 scales queries by their position; Mistral Small does not."""
    beta = fields.number("attention.temperature_scale", 0)
    rope = settings["rope_parameters"]
    if beta:
        if "original_max_position_embeddings" not in rope:
            fields.refuse("attention.temperature_scale", f"{beta} without YaRN")
        fields.expect("attention.temperature_length", rope["original_max_position_embeddings"])
        settings["model_type"], rope["llama_4_scaling_beta"] = "ministral3", beta


def read_experts(fields: Fields, settings: Settings) -> None:
    """Read the experts' sizes where they differ from those of other layers."""
    settings["moe_intermediate_size"] = fields.count("expert_feed_forward_length", 0) or fields.rows(
        "ffn_gate_exps.weight"
    )
    settings["num_experts_per_tok"] = fields.size("expert_used_count")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        settings[name] = fields.size("expert_count")
    if settings["num_experts_per_tok"] > settings["num_experts"]:
        fields.refuse("expert_used_count", settings["num_experts_per_tok"])


def read_shared_expert(fields: Fields, settings: Settings) -> None:
    """Read Qwen 2's shared expert, whose size may be stated."""
    rows = fields.rows("ffn_gate_shexp.weight")
    fields.expect("expert_shared_feed_forward_length", rows)
    settings["shared_expert_intermediate_size"] = rows


def read_softmax(fields: Fields, settings: Settings) -> None:
    """Accept only routers whose weights come from a softmax over all experts, and that do not scale."""
    fields.expect("expert_gating_func", SOFTMAX, 0)


def read_gpt_oss(fields: Fields, settings: Settings) -> None:
    """Read gpt-oss. Its range of YaRN is not rounded; the file does not say so, and llama.cpp rounds it."""
    read_windows(fields, settings, 2)
    settings["intermediate_size"] = settings.pop("moe_intermediate_size")
    if settings["rope_parameters"]["rope_type"] == "yarn":
        settings["rope_parameters"]["truncate"] = False


def read_granite(fields: Fields, settings: Settings) -> None:
    """Read Granite. Its files say by `finetuned` whether positions are turned at all."""
    fields.expect("rope.scaling.finetuned", True)
    read_granite_factors(fields, settings)
    if shared := fields.count("expert_shared_feed_forward_length", 0):
        settings |= {"model_type": "granitemoeshared", "shared_intermediate_size": shared}


def read_granite_factors(fields: Fields, settings: Settings) -> None:
    """Read the factors by which Granite multiplies."""
    settings["attention_multiplier"] = fields.number("attention.scale", 0) or settings["head_dim"] ** -0.5
    for name, key in (("embedding_multiplier", "embedding_scale"), ("residual_multiplier", "residual_scale")):
        settings[name] = fields.number(key, 0) or 1.0
    settings["logits_scaling"] = fields.number("logit_scale")


def read_phi3(fields: Fields, settings: Settings) -> None:
    rope = settings["rope_parameters"]
    settings["sliding_window"] = fields.count("attention.sliding_window", 0) or None
    settings["original_max_position_embeddings"] = rope.get(
        "original_max_position_embeddings", settings["max_position_embeddings"]
    )


def read_cohere2(fields: Fields, settings: Settings) -> None:
    """Read Cohere 2: if some layers slide, llama.cpp and transformers turn positions in these alone."""
    read_windows(fields, settings, 4)
    read_one_rope(fields, settings)


def read_exaone4(fields: Fields, settings: Settings) -> None:
    """Read EXAONE 4, which turns positions as Cohere 2 does. Files of 64 layers slide also if they do not state it."""
    read_windows(fields, settings, 4, WINDOW if settings["num_hidden_layers"] == EXAONE_32B else 0)
    read_one_rope(fields, settings)


def read_logit_scale(fields: Fields, settings: Settings) -> None:
    settings["logit_scale"] = fields.number("logit_scale", 0) or 1.0


def read_gpt2(fields: Fields, settings: Settings) -> None:
    """Read GPT-2, whose positions are embeddings."""
    settings["n_inner"] = settings["intermediate_size"]
    settings["max_position_embeddings"] = fields.rows("position_embd.weight")


def read_stablelm(fields: Fields, settings: Settings) -> None:
    """Read StableLM. Its tensors show what the file does not say."""
    settings["use_qkv_bias"] = settings["attention_bias"]
    settings["use_parallel_residual"] = not fields.has_tensor("ffn_norm.weight")
    fields.expect("use_parallel_residual", True, False)


def read_neutral_scale(fields: Fields, settings: Settings) -> None:
    """Accept a scale of attention only where it is the usual one."""
    usual = settings["head_dim"] ** -0.5
    scale = fields.number("attention.scale", 0)
    if scale and not math.isclose(scale, usual, rel_tol=1e-6):
        fields.refuse("attention.scale", scale)


def read_olmo(fields: Fields, settings: Settings) -> None:
    """Read Olmo, whose norms have no weights and a fixed constant."""
    fields.expect("attention.layer_norm_epsilon", 1e-5)
    settings["clip_qkv"] = fields.number("attention.clamp_kqv", 0) or None


def read_text_alone(fields: Fields, settings: Settings) -> None:
    """Read a vision model for text alone: the position of a text's token is the same in all sections."""
    check_sections(fields)
    fields.each("n_deepstack_layers", None)
