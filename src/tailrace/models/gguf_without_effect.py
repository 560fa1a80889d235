"""The fields of GGUF files that a conversion may leave unread, and why. gguf_fields.py refuses all others. docs/gguf.md
shows the table. Part of convert.py's process; knows no architecture.
"""

from __future__ import annotations

import re
from typing import Any

# pattern of a field's name → why no token depends on the field. Fields of the architecture are without its name.
WITHOUT_EFFECT: dict[str, str] = {
    r"GGUF\..+": "the header's counts, which are checked before",
    r"general\.(?!sampling\.|tensor_extra\.).+": "how the model is called, where it comes from, who may use it",
    r"general\.sampling\..+": "defaults of requests; a warning names the defaults that are not used",
    r"general\.tensor_extra\.(name|prec_a4)": "in which precision a kernel may read inputs; ours read them as they are",
    r"split\.(no|count|tensors\.count)": "checked when the parts are put together",
    r"quantize\.imatrix\..+": "how the blocks were chosen",
    r"(mradermacher|duynt)\..+": "when and by which machine the blocks were made",
    r"tokenizer\.ggml\.(fim_(pre|suf|mid|pad|rep|sep)|prefix|suffix|middle)_token_id": (
        "tokens that a client writes to fill a gap"
    ),
    r"tokenizer\.ggml\.((seperator|separator|cls|mask)_token_id|token_type_count)": "tokens and kinds of encoders",
    r"tokenizer\.chat_templates": "the names of the templates, which are read by their own fields",
    r"tokenizer\.(huggingface\.json|rwkv\.world)": "the tokenizer once more, for other programs",
    r"vocab_size": "the number of rows of the embedding, which counts",
    r"rope\.scaling\.finetuned": "whether the model was trained for its scaling; Granite reads it",
    r"attention\.temperature_length": "an effect of attention.temperature_scale, which is refused unless it is read",
}
PATTERNS = re.compile("|".join(f"(?:{pattern})" for pattern in WITHOUT_EFFECT))
OFF = (0, False)
ONE = (0, 1)  # llama.cpp takes 0 for "not set"
# values that change nothing, of fields that are refused otherwise unless a reader reads them
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping"), OFF),
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale", "attention.output_scale"), ONE),
    **dict.fromkeys(("attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias"), OFF),
    **dict.fromkeys(("attention.sliding_window", "attention.temperature_scale", "attention.shared_kv_layers"), OFF),
    **dict.fromkeys(("expert_count", "expert_used_count", "expert_shared_count", "expert_gating_func"), OFF),
    **dict.fromkeys(("expert_feed_forward_length", "expert_shared_feed_forward_length"), OFF),
    **dict.fromkeys(("expert_weights_norm", "leading_dense_block_count", "interleave_moe_layer_step"), OFF),
    **dict.fromkeys(("expert_group_count", "expert_group_used_count", "expert_weights_scale"), ONE),
    **dict.fromkeys(("nextn_predict_layers", "n_deepstack_layers", "pooling_type", "swin_norm"), OFF),
    **dict.fromkeys(("swiglu_clamp_exp", "swiglu_clamp_shexp", "rescale_every_n_layers"), OFF),
    **dict.fromkeys(("rope.scaling.alpha", "rope.dimension_sections", "rope.dimension_count_swa"), OFF),
    "attention.causal": (True,),
    "tensor_data_layout": ("Meta AI original pth",),  # of llama's queries and keys, as in every file
    **{
        f"tokenizer.ggml.{name}": OFF
        for name in ("add_sep_token", "remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents")
    },
}


def has_effect(key: str, value: Any) -> bool:
    """Return True unless the field has no effect, or its value has none. A value may be a list.

    >>> has_effect("general.name", "Llama"), has_effect("logit_scale", 1.0), has_effect("logit_scale", 0.5)
    (False, False, True)
    """
    values = value if isinstance(value, list) else [value]
    return not PATTERNS.fullmatch(key) and any(entry not in NEUTRAL.get(key, ()) for entry in values)


def list_reasons() -> list[str]:
    """Return the rows of the table in docs/gguf.md."""
    escaped = {pattern.replace("|", r"\|"): reason for pattern, reason in WITHOUT_EFFECT.items()}
    return [f"| `{pattern}` | {reason} |" for pattern, reason in escaped.items()]
