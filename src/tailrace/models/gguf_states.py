"""Readers of a GGUF file's fields for models with state spaces, and for those whose attention reads what an indexer
selects. Part of convert.py's process; knows nothing of weights.

In such a file a layer without heads of keys keeps a state. Mamba and Mamba 2 have no attention at all.
"""

from __future__ import annotations

from tailrace.models.gguf_architecture import Architecture
from tailrace.models.gguf_fields import Fields, are_flags
from tailrace.models.gguf_hybrids import read_latent
from tailrace.models.gguf_mixtures import read_routing
from tailrace.models.gguf_readers import (
    FULL,
    SIGMOID,
    Reader,
    Settings,
    layer_norm,
    read_experts,
    read_granite_factors,
    read_heads,
    read_neutral_scale,
    read_norm,
    read_one_rope,
)
from tailrace.models.gguf_rope import read_rope
from tailrace.models.gguf_state_recipes import (
    FALCON_H1,
    HYBRID_CHANGES,
    HYBRID_GRANITE,
    JAMBA,
    KIMI_CHANGES,
    KIMI_LINEAR,
    MAMBA,
    MAMBA2,
    MAMBA2_WAYS,
    NEMOTRON_H,
)

RECURRENT, MLP, EXPERTS = "linear_attention", "mlp", "moe"
# transformers' names of: kernel, state, has a bias of the convolution, has biases of projections
LONG_NAMES = ("mamba_d_conv", "mamba_d_state", "mamba_conv_bias", "mamba_proj_bias")
SHORT_NAMES = ("conv_kernel", "state_size", "use_conv_bias", "use_bias")
NEMOTRON_NAMES = ("conv_kernel", "ssm_state_size", "use_conv_bias", "use_bias")
# and of Mamba 2: heads, the size of a head, groups
LONG_HEADS = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups")
SHORT_HEADS = ("num_heads", "head_dim", "n_groups")
NEMOTRON_HEADS = ("mamba_num_heads", "mamba_head_dim", "n_groups")


def read_layer_kinds(fields: Fields, settings: Settings) -> None:
    """Read which layers attend, and which keep a state."""
    settings["layer_types"] = [FULL if heads else RECURRENT for heads in settings["kv_heads_by_layer"]]


def read_no_rope(fields: Fields, settings: Settings) -> None:
    """Accept any rotary embedding: nothing is turned by its position."""
    for key in ("rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned"):
        fields.each(key, None)


def read_state(fields: Fields, settings: Settings, names: tuple[str, ...]) -> int:
    """Read the sizes of a state space. Return the channels."""
    kernel, state, convolution_bias, bias = names
    settings[kernel], settings[state] = fields.size("ssm.conv_kernel"), fields.size("ssm.state_size")
    settings[convolution_bias] = fields.has_tensor("ssm_conv1d.bias")
    settings[bias] = fields.has_tensor("ssm_in.bias")
    return fields.size("ssm.inner_size")


def read_expansion(fields: Fields, settings: Settings, name: str, channels: int) -> None:
    """Set how many times as wide as the model a state space is. transformers takes whole numbers."""
    settings[name], rest = divmod(channels, settings["hidden_size"])
    if rest or not settings[name]:
        fields.refuse("ssm.inner_size", channels)


def state_space(names: tuple[str, ...], rank: str, expansion: str) -> Reader:
    """Return a reader of Mamba's layers. rank, expansion: transformers' names."""

    def read(fields: Fields, settings: Settings) -> None:
        read_expansion(fields, settings, expansion, read_state(fields, settings, names))
        settings[rank] = fields.size("ssm.time_step_rank")

    return read


def state_space2(names: tuple[str, ...], heads: tuple[str, ...], expansion: str = "") -> Reader:
    """Return a reader of Mamba 2's layers, which have heads and groups. expansion: transformers' name, if a setting
    states it."""

    def read(fields: Fields, settings: Settings) -> None:
        channels = read_state(fields, settings, names)
        count, groups = fields.size("ssm.time_step_rank"), fields.size("ssm.group_count")
        if channels % count:
            fields.refuse("ssm.time_step_rank", count)
        if count % groups:
            fields.refuse("ssm.group_count", groups)
        settings |= dict(zip(heads, (count, channels // count, groups), strict=True))
        if expansion:
            read_expansion(fields, settings, expansion, channels)

    return read


def read_mamba(fields: Fields, settings: Settings) -> None:
    """Read Mamba. With norms of time steps and inputs it is Falcon Mamba."""
    settings["intermediate_size"] = fields.size("ssm.inner_size")
    if fields.flag("ssm.dt_b_c_rms", False):
        settings["model_type"] = "falcon_mamba"


def find_period(layers: list[bool]) -> tuple[int, int] | None:
    """Return period and offset of the layers that are marked, or None if no period has these."""
    for period in range(1, len(layers) + 1):
        for offset in range(period):
            if layers == [layer % period == offset for layer in range(len(layers))]:
                return period, offset
    return None


def read_jamba(fields: Fields, settings: Settings) -> None:
    """Read Jamba. Attention and experts come in periods, which no field states."""
    attends = [bool(heads) for heads in settings["kv_heads_by_layer"]]
    chooses = [f"blk.{layer}.ffn_gate_inp.weight" in fields.tensors for layer in range(len(attends))]
    settings["num_experts"] = fields.count("expert_count", 0) if any(chooses) else 1
    settings["num_experts_per_tok"] = fields.count("expert_used_count", 1)
    for name, layers in (("attn", attends), ("expert", chooses)):
        period = find_period(layers)
        if period is None and any(layers):
            fields.refuse("attention.head_count_kv" if name == "attn" else "expert_count", layers)
        settings[f"{name}_layer_period"], settings[f"{name}_layer_offset"] = period or (1, 0)
    if not settings["num_experts"] >= settings["num_experts_per_tok"] >= 1:
        fields.refuse("expert_used_count", settings["num_experts_per_tok"])


def read_granite_hybrid(fields: Fields, settings: Settings) -> None:
    """Read Granite 4, whose attention turns positions only if the file says so. Models without experts have one
    network in each layer, which transformers calls the shared expert."""
    turned = fields.flag("rope.scaling.finetuned", True)
    if turned:
        settings["rope_parameters"] = read_rope(fields, settings["head_dim"])
    else:
        read_no_rope(fields, settings)
    settings["position_embedding_type"] = "rope" if turned else None
    experts = settings["num_local_experts"] = fields.count("expert_count", 0)
    settings["num_experts_per_tok"] = fields.count("expert_used_count", 0)
    if settings["num_experts_per_tok"] > experts or bool(experts) != bool(settings["num_experts_per_tok"]):
        fields.refuse("expert_used_count", settings["num_experts_per_tok"])
    shared = fields.count("expert_shared_feed_forward_length", 0)
    settings["shared_intermediate_size"] = shared if experts else settings["intermediate_size"]


def read_falcon_h1(fields: Fields, settings: Settings) -> None:
    """Read Falcon H1, whose weights have all factors in them. The gate comes before the norm, if there is one."""
    settings["mamba_d_ssm"] = fields.size("ssm.inner_size")
    settings["mamba_rms_norm"] = fields.has_tensor("ssm_norm.weight")
    settings["mamba_norm_before_gate"] = False
    settings["projectors_bias"] = fields.has_tensor("ssm_out.bias")


def read_nemotron_h(fields: Fields, settings: Settings) -> None:
    """Read Nemotron H. Each layer is one of four: it attends, keeps a state, has a network or experts."""
    heads, sizes = settings["kv_heads_by_layer"], settings["feed_forward_by_layer"]
    chooses = [f"blk.{layer}.ffn_gate_inp.weight" in fields.tensors for layer in range(len(heads))]
    settings["layer_types"] = [
        FULL if of else RECURRENT if not size else EXPERTS if choice else MLP
        for of, size, choice in zip(heads, sizes, chooses, strict=True)
    ]
    widths = {size for size, choice in zip(sizes, chooses, strict=True) if size and not choice}
    if len(widths) > 1 or any(of and size for of, size in zip(heads, sizes, strict=True)):
        fields.refuse("feed_forward_length", sizes)
    settings["intermediate_size"] = max(widths, default=1)
    settings["mamba_proj_bias"] = settings["use_bias"]
    del settings["num_hidden_layers"]


def read_nemotron_experts(fields: Fields, settings: Settings) -> None:
    """Read Nemotron H's experts, whose router is a sigmoid with corrections."""
    fields.expect("expert_gating_func", SIGMOID, 0)
    settings["moe_shared_expert_intermediate_size"] = fields.size("expert_shared_feed_forward_length")
    settings["moe_latent_size"] = fields.count("moe_latent_size", 0) or None


def read_kimi_linear(fields: Fields, settings: Settings) -> None:
    """Read Kimi Linear. Nothing is turned by its position, and experts' weights always add up to the factor."""
    del settings["rope_parameters"]
    fields.expect("expert_gating_func", SIGMOID)
    settings["norm_topk_prob"] = True
    settings["linear_head_dim"] = fields.size("kda.head_dim")
    settings["linear_num_heads"] = settings["num_attention_heads"]
    settings["linear_conv_kernel_dim"] = fields.size("ssm.conv_kernel")


def read_indexer(fields: Fields, settings: Settings) -> None:
    """Read the indexer of sparse attention. A layer without one reads what the indexer before it selected."""
    fields.expect("expert_gating_func", SIGMOID, 0)
    settings["index_topk"] = fields.size("attention.indexer.top_k")
    settings["index_head_dim"] = fields.size("attention.indexer.key_length")
    settings["index_n_heads"] = fields.size("attention.indexer.head_count")
    layers = settings["num_hidden_layers"]
    own = [f"blk.{layer}.indexer.attn_k.weight" in fields.tensors for layer in range(layers)]
    full = fields.each("attention.indexer.types", own)
    if not are_flags(full, layers) or not full[0]:
        fields.refuse("attention.indexer.types", full)
    settings["indexer_types"] = ["full" if each else "shared" for each in full[:layers]]


RMS = layer_norm("layer_norm_epsilon", "layer_norm_rms")
LATENT = (read_norm, read_latent, read_experts, read_routing)
NEMOTRON = (layer_norm("layer_norm_epsilon", "layer_norm"), read_heads, read_no_rope, read_neutral_scale)
NEMOTRON = (*NEMOTRON, state_space2(NEMOTRON_NAMES, NEMOTRON_HEADS), read_nemotron_h)
STATES: dict[str, Architecture] = {
    "mamba": Architecture(
        "mamba",
        readers=(
            RMS,
            state_space(SHORT_NAMES, "time_step_rank", "expand"),
            read_mamba,
        ),
        changes=MAMBA,
    ),
    "mamba2": Architecture(
        "mamba2",
        readers=(
            RMS,
            state_space2(SHORT_NAMES, SHORT_HEADS, "expand"),
        ),
        changes=MAMBA2,
        ways=MAMBA2_WAYS,
    ),
    "jamba": Architecture(
        "jamba",
        readers=(
            read_norm,
            read_heads,
            read_no_rope,
            state_space(LONG_NAMES, "mamba_dt_rank", "mamba_expand"),
            read_jamba,
        ),
        changes=MAMBA,
        ways=JAMBA,
    ),
    "falcon-h1": Architecture(
        "falcon_h1",
        readers=(
            read_norm,
            read_heads,
            read_one_rope,
            read_neutral_scale,
            state_space2(LONG_NAMES, LONG_HEADS),
            read_falcon_h1,
        ),
        changes=MAMBA2,
        ways=FALCON_H1,
    ),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        readers=(
            read_norm,
            read_heads,
            read_layer_kinds,
            state_space2(LONG_NAMES, LONG_HEADS, "mamba_expand"),
            read_granite_hybrid,
            read_granite_factors,
        ),
        changes=HYBRID_CHANGES,
        ways=HYBRID_GRANITE,
    ),
    "nemotron_h": Architecture("nemotron_h", readers=NEMOTRON, changes=MAMBA2, ways=NEMOTRON_H),
    "nemotron_h_moe": Architecture(
        "nemotron_h",
        readers=(*NEMOTRON, read_experts, read_routing, read_nemotron_experts),
        changes=MAMBA2,
        ways=NEMOTRON_H,
    ),
    "kimi-linear": Architecture(
        "kimi_linear", readers=(*LATENT, read_layer_kinds, read_kimi_linear), changes=KIMI_CHANGES, ways=KIMI_LINEAR
    ),
}
