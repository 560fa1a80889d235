"""Connects transformers' attention interface to the paged KV cache. A model loaded with attn_implementation="tailrace"
calls `attend` in every layer. The attention module carries its AttentionLayer, which knows the layer's cache and the
current step.

Knows nothing of models; runners/transformers.py attaches the layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tailrace import kernels
from tailrace.errors import ModelLoadError

NAME = "tailrace"  # the name under which the function is registered
ATTRIBUTE = "tailrace_layer"  # where a module carries its AttentionLayer


@dataclass(slots=True)
class AttentionStep:
    """The inputs that the layers of one forward pass share, on the runner's device; see runners.base.Batch."""

    slot_mapping: torch.Tensor
    query_start: torch.Tensor
    kv_len: torch.Tensor
    block_tables: torch.Tensor


@dataclass(slots=True)
class AttentionState:
    """The one mutable state of paged attention: the step being computed, and every layer's cache."""

    step: AttentionStep | None = None
    caches: list[kernels.KVCache] = field(default_factory=list)


@dataclass(slots=True)
class AttentionLayer:
    """The layer of one attention module: which cache is its own, and what its model asked for at the first call."""

    shared: AttentionState
    index: int
    calls: int = 0
    heads: int = 0
    head_dim: int = 0
    scale: float = 0.0
    window: int = 0
    softcap: float = 0.0

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Store key and value [T, Hkv, D]; return the attention of query [T, Hq, D] → [T, Hq, D]."""
        step = self.shared.step
        assert step is not None, "attention outside of a forward pass"
        cache = self.shared.caches[self.index]
        kernels.store_kv(cache, key, value, step.slot_mapping)
        return kernels.paged_attention(
            query,
            cache,
            step.block_tables,
            step.query_start,
            step.kv_len,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
        )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: query [1, Hq, T, D], key and value [1, Hkv, T, D] → [1, T, Hq,
    D].

    Raises:
        ModelLoadError: the model asks for something that the paged kernel can't do (found by the trial run at load).
    """
    layer: AttentionLayer | None = getattr(module, ATTRIBUTE, None)
    if layer is None:
        raise ModelLoadError(f"{type(module).__name__} calls attention but is not one of the model's decoder layers")
    if attention_mask is not None or options.get("s_aux") is not None or options.get("position_bias") is not None:
        raise ModelLoadError(f"{type(module).__name__} needs an attention mask, bias or sinks, which are not supported")
    if value.shape[-1] != key.shape[-1]:
        raise ModelLoadError(f"{type(module).__name__} has values narrower than its keys, which is not supported")
    layer.calls += 1
    layer.heads, layer.head_dim = key.shape[1], key.shape[-1]
    layer.scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer.window = int(options.get("sliding_window") or 0)
    layer.softcap = float(options.get("softcap") or 0.0)
    if not layer.shared.caches:  # the first pass of the trial run only asks for the shapes
        return value.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(1, 2), None
    out = layer.attend(query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1))
    return out[None], None
