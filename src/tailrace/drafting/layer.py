"""One decoder layer of the Llama family in parts: keys and values, queries, and the rest after attention. Drafting
heads consist of such layers and differ in their inputs.

Kernels do all arithmetic: on the CPU a row's result has the same bits whatever the other rows are. This module knows no
caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tailrace import kernels
from tailrace.base.extras import require_extra
from tailrace.base.process_limits import SETTINGS_BYTES, limit_growth
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.errors import ModelLoadError

# Families whose decoder layers equal Llama's in heads: separate projections, RMS norms, a gated MLP, rotation
# of halves.
FAMILIES = ("llama", "mistral", "ministral", "phi3", "qwen2", "qwen3", "seed_oss")
Rope = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, each [n, D]


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.rms_norm(x, self.weight, self.eps)


class DecoderLayer:
    """Attention's projections and the MLP. Symbols: n rows, H hidden size, Hq and Hkv heads of D.

    Args:
        prefix: of its tensors' names, with the dot.
        config: a Llama-like configuration of transformers, see `parse_config`.
        width: of the input of its projections.

    Raises:
        ModelLoadError: a tensor is missing or has another shape; or the activation is not SiLU.
    """

    def __init__(self, checkpoint: Checkpoint, prefix: str, config: Any, width: int) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim: int = config.head_dim or hidden // self.heads
        if config.hidden_act not in ("silu", "swish"):
            raise ModelLoadError(f"{checkpoint.folder}: hidden_act must be silu, got {config.hidden_act!r}")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ModelLoadError(
                f"{checkpoint.folder}: num_attention_heads must be a multiple of num_key_value_heads and "
                f"head_dim even, "
                f"got {self.heads}, {self.kv_heads} and {self.head_dim}"
            )
        attention = f"{prefix}self_attn."
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q = pack_projections(checkpoint, width, (f"{attention}q_proj", queries))
        self.kv = pack_projections(checkpoint, width, (f"{attention}k_proj", keys), (f"{attention}v_proj", keys))
        self.o = pack_projections(checkpoint, queries, (f"{attention}o_proj", hidden))
        self.gate_up = pack_projections(
            checkpoint, hidden, (f"{prefix}mlp.gate_proj", inner), (f"{prefix}mlp.up_proj", inner)
        )
        self.down = pack_projections(checkpoint, inner, (f"{prefix}mlp.down_proj", hidden))
        eps = config.rms_norm_eps
        q_norm = checkpoint.take_optional(f"{attention}q_norm.weight", self.head_dim)
        k_norm = checkpoint.take_optional(f"{attention}k_norm.weight", self.head_dim)
        self.q_norm = None if q_norm is None else Norm(q_norm, eps)
        self.k_norm = None if k_norm is None else Norm(k_norm, eps)
        self.dtype, self.device, self.scale = checkpoint.dtype, checkpoint.device, self.head_dim**-0.5
        self.norm = Norm(checkpoint.take(f"{prefix}post_attention_layernorm.weight", hidden), eps)

    @property
    def position_bytes(self) -> int:
        """Bytes of cache per position."""
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def make_cache(self, num_blocks: int, block_size: int) -> kernels.KVCache:
        """Make a cache for the layer's keys and values; see kernels.make_cache."""
        return kernels.make_cache(num_blocks, self.kv_heads, block_size, self.head_dim, self.dtype, self.device)

    def compute_query(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Compute queries [n, Hq, D] from [n, width], at the positions of `rope`."""
        query = kernels.linear(x, self.q).unflatten(-1, (self.heads, self.head_dim))
        query = query if self.q_norm is None else self.q_norm(query)
        kernels.rotary(query, *rope)
        return query

    def keys_values(self, x: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute keys, at the positions of `rope`, and values from [n, width]; each [n, Hkv, D]."""
        key, value = kernels.linear(x, self.kv).unflatten(-1, (2, self.kv_heads, self.head_dim)).unbind(-3)
        key = key if self.k_norm is None else self.k_norm(key)
        kernels.rotary(key, *rope)
        return key, value

    def project_mixed(self, mixed: torch.Tensor) -> torch.Tensor:
        """Project the output of attention, [n, Hq, D], to [n, H]."""
        return kernels.linear(mixed.flatten(1), self.o)

    def feed_forward(self, normed: torch.Tensor) -> torch.Tensor:
        """Compute the MLP, [n, H] → [n, H]."""
        return kernels.linear(kernels.silu_mul(kernels.linear(normed, self.gate_up)), self.down)

    def add_attention(self, residual: torch.Tensor, added: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of both, and the MLP's input. `residual` [n, H] is not modified."""
        stream = residual.clone()
        return stream, kernels.add_rms_norm(stream, added, self.norm.weight, self.norm.eps)

    def compute_output(self, residual: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output [n, H], given the output of attention [n, Hq, D]. `residual` [n, H] is not
        modified."""
        stream, normed = self.add_attention(residual, self.project_mixed(mixed))
        return stream + self.feed_forward(normed)


class Rotary:
    """Positions → cosines and sines, for every kind of rotary scaling that does not depend on the other positions."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device | str) -> None:
        with require_extra("serve"):
            from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self.embedding = LlamaRotaryEmbedding(config).to(device)
        self.like = torch.empty(0, dtype=dtype, device=device)

    def __call__(self, positions: torch.Tensor) -> Rope:
        """Return cosines and sines for int64 [n], each [n, D]."""
        cos, sin = self.embedding(self.like, positions.to(self.like.device)[None])
        return cos[0], sin[0]


def parse_config(checkpoint: Checkpoint) -> Any:
    """Return the folder's configuration as transformers' class for its model_type, so that all defaults are the
    published ones. (The speculators library keeps it in a section of its own.)

    Raises:
        ModelLoadError: its model_type is not of the Llama family, or its rotary scaling depends on the sequence's
            length.
    """
    with require_extra("serve"):
        from huggingface_hub.errors import StrictDataclassError
        from transformers import CONFIG_MAPPING

    section = checkpoint.config.get("transformer_layer_config") or checkpoint.config
    kind = section.get("model_type", "llama")
    if kind not in FAMILIES:
        raise ModelLoadError(f"{checkpoint.folder}: model_type must be {', '.join(FAMILIES)}, got {kind!r}")
    try:
        with limit_growth(SETTINGS_BYTES):
            config = CONFIG_MAPPING[kind](**{k: v for k, v in section.items() if k != "model_type"})
    except MemoryError as error:
        raise ModelLoadError(f"{checkpoint.folder}: its config.json takes too much memory") from error
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        raise ModelLoadError(f"{checkpoint.folder}: config.json: {error}") from error
    rope = config.rope_parameters or {}
    if (kind := rope.get("rope_type")) in ("dynamic", "longrope"):  # its frequencies depend on a sequence's length
        raise ModelLoadError(f"{checkpoint.folder}: {kind} rotary scaling is not supported in a drafting layer")
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config


def pack_projections(checkpoint: Checkpoint, width: int, *parts: tuple[str, int]) -> Any:
    """Pack projections of one input as one. parts: the name of each, and the width of its output. Biases are taken if
    there are any."""
    weights = [checkpoint.take(f"{name}.weight", rows, width) for name, rows in parts]
    biases = [checkpoint.take_optional(f"{name}.bias", rows) for name, rows in parts]
    bias = None
    if any(part is not None for part in biases):
        bias = torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])
    return kernels.pack_linear(torch.cat(weights), bias)
