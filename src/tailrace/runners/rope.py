"""Rotary embeddings whose frequencies depend on the length of a sequence, made to depend on nothing.

transformers takes LongRoPE's long or short factors by the longest sequence of a batch. Keys in the cache were turned by
the factors of their own step, so a sequence that grows past the boundary would mix both. Here one set is chosen at
load, as in vLLM: the long factors if the longest sequence that is served is longer than the original context. "Dynamic"
scaling begins after `max_position_embeddings`. No sequence gets that far, so it needs no change.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from tailrace.base.extras import require_extra
from tailrace.errors import ModelLoadError

log = logging.getLogger(__name__)


def settle_long_rope(model: nn.Module, longest: int) -> None:
    """Let every rotary embedding with LongRoPE use one set of factors.

    Args:
        longest: sequence that is served, in tokens.

    Raises:
        ModelLoadError: a module's frequencies are not where transformers keeps them.
    """
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)
        by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
        for layer_type in [name for name, kind in by_layer.items() if kind == "longrope"]:
            _fix_frequencies(module, layer_type, longest)


def _fix_frequencies(module: Any, layer_type: str | None, longest: int) -> None:
    with require_extra("serve"):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    prefix = "" if layer_type is None else f"{layer_type}_"
    settings = module.config.rope_parameters
    settings = settings if layer_type is None else settings[layer_type]
    original = settings.get("original_max_position_embeddings")
    if original is None or not hasattr(module, f"{prefix}original_inv_freq"):
        raise ModelLoadError(f"{type(module).__name__} has LongRoPE in a form that is not supported")
    log.info(
        "LongRoPE: the %s factors for all sequences (up to %d tokens are served, the original context is %d)",
        "long" if longest > original else "short",
        longest,
        original,
    )
    options = {} if layer_type is None else {"layer_type": layer_type}
    short = getattr(module, f"{prefix}original_inv_freq")
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](
        module.config, short.device, seq_len=original + 1 if longest > original else original, **options
    )
    getattr(module, f"{prefix}inv_freq").copy_(frequencies)
    short.copy_(frequencies)
    setattr(module, f"{prefix}long_inv_freq", frequencies.clone())
