"""The architectures of GGUF files that are converted. Part of convert.py's process."""

from __future__ import annotations

from tailrace.errors import ModelLoadError
from tailrace.models.context import context_length
from tailrace.models.gguf_architecture import Architecture
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_hybrids import read_delta, read_gemma4, read_latent, read_lfm2, read_sections
from tailrace.models.gguf_mixtures import (
    read_deepseek2,
    read_dots,
    read_ernie_moe,
    read_glm4_moe,
    read_granite_moe,
    read_hunyuan_moe,
    read_lfm2_moe,
    read_llama4,
    read_minimax,
    read_routing,
)
from tailrace.models.gguf_readers import (
    BY_LAYER,
    Settings,
    layer_norm,
    read_cohere2,
    read_common,
    read_exaone4,
    read_experts,
    read_gemma,
    read_gemma2,
    read_gemma3,
    read_gpt2,
    read_gpt_oss,
    read_granite,
    read_heads,
    read_llama,
    read_logit_scale,
    read_mistral3,
    read_neutral_scale,
    read_norm,
    read_olmo,
    read_olmo2,
    read_one_rope,
    read_phi3,
    read_shared_expert,
    read_softmax,
    read_stablelm,
    read_text_alone,
)
from tailrace.models.gguf_recipes import (
    DELTA,
    ERNIE_MOE,
    GEMMA4,
    GPT_OSS,
    GRANITE_MOE,
    LFM2_MOE,
    LLAMA4,
    LYING,
    MINIMAX,
    NEXT,
    NEXT_WAYS,
    PERMUTED,
    SHIFTED,
    SHORT,
)
from tailrace.models.gguf_states import STATES, read_indexer

HEADS = (read_norm, read_heads)
USUAL = (*HEADS, read_one_rope)
PLAIN = (*USUAL, read_neutral_scale)
TURNS = (read_heads, read_one_rope, read_neutral_scale)
EXPERTS = (*PLAIN, read_experts)
GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}
NO_WINDOW = {"use_sliding_window": False, "sliding_window": None}
LATENT = (read_norm, read_latent, read_experts, read_routing)
QWEN_MOE = {**NO_WINDOW, "mlp_only_layers": [], "decoder_sparse_step": 1}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", readers=(*PLAIN, read_llama), changes=PERMUTED),
    "llama4": Architecture("llama4_text", readers=(*EXPERTS, read_llama4), ways=LLAMA4),
    "mistral3": Architecture(
        "mistral", fixed={"sliding_window": None}, readers=(*PLAIN, read_mistral3), changes=PERMUTED
    ),
    "qwen2": Architecture("qwen2", fixed=NO_WINDOW, readers=PLAIN),
    "qwen2vl": Architecture("qwen2", fixed=NO_WINDOW, readers=(*PLAIN, read_text_alone)),
    "qwen3": Architecture("qwen3", fixed=NO_WINDOW, readers=PLAIN),
    "qwen3vl": Architecture("qwen3", fixed=NO_WINDOW, readers=(*PLAIN, read_text_alone)),
    "qwen2moe": Architecture(
        "qwen2_moe", fixed=QWEN_MOE | {"norm_topk_prob": False}, readers=(*EXPERTS, read_softmax, read_shared_expert)
    ),
    "qwen3moe": Architecture("qwen3_moe", fixed=QWEN_MOE | {"norm_topk_prob": True}, readers=(*EXPERTS, read_softmax)),
    "qwen3vlmoe": Architecture(
        "qwen3_moe",
        fixed=QWEN_MOE | {"norm_topk_prob": True},
        readers=(*EXPERTS, read_softmax, read_text_alone),
    ),
    "dots1": Architecture("dots1", fixed={"sliding_window": None}, readers=(*EXPERTS, read_routing, read_dots)),
    "hunyuan-moe": Architecture("hunyuan_v1_moe", readers=(*EXPERTS, read_softmax, read_hunyuan_moe)),
    "olmoe": Architecture("olmoe", fixed={"norm_topk_prob": False}, readers=(*PLAIN, read_experts, read_softmax)),
    "gemma": Architecture("gemma", fixed={"hidden_act": "gelu_pytorch_tanh"}, readers=PLAIN, changes=SHIFTED),
    "gemma2": Architecture("gemma2", fixed=GEMMA, readers=(*HEADS, read_gemma, read_gemma2), changes=SHIFTED),
    "gemma3": Architecture("gemma3_text", fixed=GEMMA, readers=(*HEADS, read_gemma, read_gemma3), changes=SHIFTED),
    "phi3": Architecture("phi3", readers=(*PLAIN, read_phi3)),
    "gpt-oss": Architecture("gpt_oss", readers=(*EXPERTS, read_softmax, read_gpt_oss), ways=GPT_OSS),
    "granite": Architecture("granite", readers=(*USUAL, read_granite), changes=PERMUTED),
    "olmo2": Architecture("olmo2", readers=(*HEADS, read_neutral_scale, read_olmo2)),
    "smollm3": Architecture(
        "smollm3", fixed=NO_WINDOW | {"no_rope_layer_interval": 4}, readers=PLAIN, changes=PERMUTED
    ),
    "deepseek2": Architecture("deepseek_v2", readers=(*LATENT, read_deepseek2)),
    "deepseek32": Architecture("deepseek_v32", readers=(*LATENT, read_indexer), names="glm-dsa"),
    "glm-dsa": Architecture("glm_moe_dsa", readers=(*LATENT, read_indexer)),
    "glm4": Architecture("glm4", readers=PLAIN),
    "glm4moe": Architecture("glm4_moe", readers=(*EXPERTS, read_routing, read_glm4_moe)),
    "stablelm": Architecture("stablelm", readers=(layer_norm("layer_norm_eps"), *TURNS, read_stablelm)),
    "starcoder2": Architecture(
        "starcoder2", fixed={"use_bias": True, "sliding_window": None}, readers=(layer_norm("norm_epsilon"), *TURNS)
    ),
    "nemotron": Architecture("nemotron", readers=(layer_norm("norm_eps"), *TURNS), changes=SHIFTED),
    "command-r": Architecture("cohere", readers=(layer_norm("layer_norm_eps"), *TURNS, read_logit_scale)),
    "cohere2": Architecture(
        "cohere2",
        readers=(layer_norm("layer_norm_eps"), read_heads, read_neutral_scale, read_cohere2, read_logit_scale),
    ),
    "olmo": Architecture("olmo", readers=(*TURNS, read_olmo), changes=PERMUTED),
    "phi2": Architecture("phi", readers=(layer_norm("layer_norm_eps"), *TURNS)),
    "seed_oss": Architecture("seed_oss", fixed={"attention_out_bias": False}, readers=PLAIN),
    "arcee": Architecture("arcee", readers=PLAIN, changes=PERMUTED),
    "qwen35": Architecture(
        "qwen3_5_text", readers=(*HEADS, read_delta, read_sections, read_neutral_scale), changes=DELTA
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        readers=(*HEADS, read_delta, read_sections, read_neutral_scale, read_experts, read_softmax, read_shared_expert),
        changes=DELTA,
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        fixed={"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1},
        readers=(*HEADS, read_delta, read_neutral_scale, read_experts, read_softmax, read_shared_expert),
        changes=NEXT,
        ways=NEXT_WAYS,
    ),
    "lfm2": Architecture("lfm2", readers=(layer_norm("norm_eps", "layer_norm_rms"), *TURNS, read_lfm2), changes=SHORT),
    "lfm2moe": Architecture(
        "lfm2_moe",
        fixed={"norm_topk_prob": True, "routed_scaling_factor": 1.0},
        readers=(layer_norm("norm_eps", "layer_norm_rms"), *TURNS, read_lfm2, read_experts, read_lfm2_moe),
        changes=SHORT,
        ways=LFM2_MOE,
    ),
    "gemma4": Architecture("gemma4_text", fixed=GEMMA, readers=(read_norm, read_gemma4), ways=GEMMA4),
    "exaone4": Architecture("exaone4", readers=(*HEADS, read_neutral_scale, read_exaone4)),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", readers=PLAIN),
    "gpt2": Architecture("gpt2", readers=(layer_norm("layer_norm_epsilon"), read_heads, read_gpt2), changes=LYING),
    "minimax-m2": Architecture("minimax_m2", readers=(*EXPERTS, read_minimax), ways=MINIMAX),
    "granitemoe": Architecture(
        "granitemoe",
        readers=(*USUAL, read_experts, read_softmax, read_granite, read_granite_moe),
        changes=PERMUTED,
        ways=GRANITE_MOE,
    ),
    "ernie4_5": Architecture("ernie4_5", fixed={"use_bias": False}, readers=PLAIN),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe", fixed={"use_bias": False}, readers=(*EXPERTS, read_softmax, read_ernie_moe), ways=ERNIE_MOE
    ),
    **STATES,
}


# general.type, or the architecture of older files → what a file is that is no model
OTHER_FILES = {
    "adapter": "a LoRA adapter, not a model: serve its base model; --lora takes adapters as folders in PEFT's layout",
    "mmproj": "the part of a model that sees or hears, not the model itself: serve the model's other file (text alone)",
    "imatrix": "an importance matrix, which quantizers read, not a model",
    "controlvector": "a control vector, not a model",
}
OTHER_FILES |= dict.fromkeys(("clip", "clip-vision"), OTHER_FILES["mmproj"])


def refuse_other_files(fields: Fields) -> None:
    """Raise ModelLoadError for a file that is no whole model."""
    kind = fields.get_field("general.type", "model")
    for name, value in (("type", kind), ("architecture", fields.architecture)):
        if (what := OTHER_FILES.get(str(value))) is not None:
            raise ModelLoadError(f"it is {what} (general.{name} is {value})")
    if kind != "model":
        raise ModelLoadError(f"the field general.type is {kind!r:.80}, and only model is served")


def read_settings(fields: Fields) -> tuple[Architecture, Settings]:
    """transformers' settings for a file, `model_type` among them.

    Raises:
        ModelLoadError: the architecture is not converted, or a field is missing, not supported or not known.
    """
    refuse_other_files(fields)
    architecture = ARCHITECTURES.get(str(fields.architecture))
    if architecture is None:
        raise ModelLoadError(
            f"the architecture {fields.architecture or 'without a name'} is not converted; these are: "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
    settings: Settings = {"model_type": architecture.model, **architecture.fixed}
    read_common(fields, settings)
    for reader in architecture.readers:
        reader(fields, settings)
    for name in BY_LAYER:
        settings.pop(name)
    settings["max_position_embeddings"] = context_length(settings)
    fields.refuse_unread(fields.name(""))
    return architecture, settings
