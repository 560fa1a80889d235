"""One layer's block-paged KV memory: two tensors whose first dimension is the block. The rest of the layout belongs to
the backend that made them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KVCache:
    """keys, values: [blocks, …]; heads, block_size, head_dim (of keys), value_dim: what a block holds."""

    keys: torch.Tensor
    values: torch.Tensor
    heads: int
    block_size: int
    head_dim: int
    value_dim: int

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.keys.dtype

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy whole blocks: target[i] becomes source[i]. Both int64 [n]; no block is in both."""
        self.keys[target] = self.keys[source]
        self.values[target] = self.values[source]
