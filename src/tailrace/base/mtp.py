"""The MTP head of a model (multi-token prediction, "nextn") in its files: where its tensors are, and the configuration
of a head, which is a model of one layer of the same class."""

from __future__ import annotations

import copy
from typing import Any

FULL = "full_attention"
# Settings that make a layer's kind depend on its number → the value for a head. A model need not have them.
SINGLE: dict[str, Any] = {
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "indexer_types": ["full"],
}
COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")  # of MTP layers
HEAD_FILE = "mtp.safetensors"  # of a converted GGUF file: beside the weights, and no part of them
HEADS = ("layers.{n}.", "mtp.", "mtp_layers.")  # how names of a head's tensors begin; {n}: the model's layers
SHARED = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the target's two ends, which are not read
KINDS = {"layer_types": "mtp_layer_types", "mlp_layer_types": "mtp_mlp_layer_types"}  # the model's → the head's


def make_single(config: Any) -> Any:
    """Return a copy of a text model's configuration for one layer, with an embedding and an output head of one token,
    which are to be replaced. The layer attends to everything and has experts, if the model's layers do."""
    single = copy.deepcopy(config)
    for name, value in {**SINGLE, **dict.fromkeys(COUNTS, 0)}.items():
        if hasattr(single, name):
            setattr(single, name, value)
    for name, given in KINDS.items():
        if kinds := getattr(config, name, None):
            own = getattr(config, given, None)
            setattr(single, name, own[:1] if own else [FULL if FULL in kinds else kinds[-1]])
    vars(single).pop("quantization_config", None)
    single.vocab_size, single.pad_token_id, single.tie_word_embeddings = 1, None, False
    return single


def shorten_name(name: str) -> str:
    """Return a tensor's name without what says that it is the model's, or its language model's."""
    return name.removeprefix("model.").removeprefix("language_model.")


def is_of_head(name: str, layers: int) -> bool:
    """Return whether a tensor of this name is an MTP head's. layers: of the model."""
    return shorten_name(name).startswith(tuple(start.format(n=layers) for start in HEADS))


def is_assistant_type(config: dict[str, Any]) -> bool:
    """Return whether this is the config.json of an assistant: a small model that reads another model's keys."""
    return str(config.get("model_type", "")).endswith("_assistant")
