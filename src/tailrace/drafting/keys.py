"""The keys of a drafter's config.json that this package supports. A key in no table is refused by name, because it may
change the drafter's results. A value of null counts as no key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.drafting.checkpoint import Checkpoint
from tailrace.errors import ModelLoadError

# Keys of a decoder layer and its rotary embedding, read by drafting/layer.py or by transformers' configuration class.
LAYER = frozenset(
    (
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "hidden_act",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "max_position_embeddings",
        "original_max_position_embeddings",
        "vocab_size",
    )
)

# Keys that can't change what a head computes: names, training, bookkeeping. Biases are taken if the file has them.
HARMLESS = frozenset(
    (
        "_name_or_path",
        "name_or_path",
        "architectures",
        "auto_map",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "initializer_range",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "attention_dropout",
        "attention_bias",
        "mlp_bias",
        "bias",
        "qkv_bias",
        "max_sequence_length",
        "max_window_layers",
        "_attn_implementation",
        "attn_implementation",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "id2label",
        "label2id",
        "problem_type",
        "model_max_length",
        "target_model_type",
        "target_model_name_or_path",
        "embed_requires_grad",
        "speculators_version",
        "speculators_config",
        "has_no_defaults_at_init",
        "torchscript",
        "tie_encoder_decoder",
        "is_decoder",
        "add_cross_attention",
        "cross_attention_hidden_size",
    )
)

# Keys that are accepted with these values only.
ONLY: dict[str, tuple[Any, ...]] = {
    "pretraining_tp": (1,),
    "is_neox_style": (True,),
    "logit_scale": (1, 1.0),
    "partial_rotary_factor": (1, 1.0),
    "num_experts": (0,),
    "attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (False,),
    "parallel_drafting": (False,),
    "quantization_config": (),
    "sample_from_anchor": (False,),
    "shift_label": (False,),
    "pure_draft_prefix_len": (0,),
    "projector_type": ("dflash",),
}


def refuse_unknown(
    checkpoint: Checkpoint, honoured: frozenset[str], sections: tuple[str, ...], only: Mapping[str, tuple[Any, ...]]
) -> None:
    """Raise ModelLoadError, naming the key, if the configuration has a setting that would be ignored.

    Args:
        honoured: keys that the head itself reads.
        sections: sections of the configuration with more such keys.
        only: further keys with their accepted values, as in ONLY.
    """
    parts = [("", checkpoint.config)]
    parts += [(f"{name}.", part) for name in sections if isinstance(part := checkpoint.config.get(name), dict)]
    for prefix, part in parts:
        for key, value in part.items():
            if value is None or key in LAYER | HARMLESS | honoured or (not prefix and key in sections):
                continue
            allowed = {**ONLY, **only}.get(key)
            if allowed is None:
                raise ModelLoadError(
                    f"{checkpoint.folder}: config.json: {prefix}{key} is not known here, and may change what is "
                    f"computed"
                )
            if value not in allowed:
                wanted = " or ".join(map(repr, allowed)) or "absent"
                raise ModelLoadError(
                    f"{checkpoint.folder}: config.json: {prefix}{key} must be {wanted}, got {str(value)[:100]}"
                )
