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
    """The layer of one attention module: which cache is its own, and what its model asks for
    (runners/probe.py finds it)."""

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


def layer_of(module: torch.nn.Module) -> AttentionLayer:
    """The AttentionLayer that the module carries.

    Raises:
        ModelLoadError: it carries none.
    """
    layer: AttentionLayer | None = getattr(module, ATTRIBUTE, None)
    if layer is None:
        raise ModelLoadError(f"{type(module).__name__} calls attention but is not one of the model's decoder layers")
    return layer


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: query [1, Hq, T, D], key and value [1, Hkv, T, D] → [1, T, Hq,
    D]. Scale, window and options are those that runners/probe.py has found at load.

    Raises:
        ModelLoadError: the model makes a mask of its own (found by the trial run at load).
    """
    layer = layer_of(module)
    if attention_mask is not None:
        raise ModelLoadError(f"{type(module).__name__} makes an attention mask of its own, which is not supported")
    out = layer.attend(query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1))
    return out[None], None
