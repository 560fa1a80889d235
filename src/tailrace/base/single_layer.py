"""The configuration of a model → that of its MTP head, which is a model of one layer of the same class."""

from __future__ import annotations

import copy
from typing import Any

FULL = "full_attention"
# Settings by which a layer's number decides what the layer is → the value for a head. Models that lack one ignore it.
SINGLE = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "mlp_only_layers": [], "decoder_sparse_step": 1}
COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")  # of MTP layers
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
