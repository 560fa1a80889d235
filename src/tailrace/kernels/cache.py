"""One layer's block-paged KV memory: tensors whose first dimension is the block. The backend that makes them decides
the rest of their layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's KV cache.

    - keys, values: [blocks, …].
    - heads, block_size, head_dim (of keys), value_dim: the shape of a block.
    - scales: None, or float32 [2, blocks, heads, block_size] for keys and values in codes of int8 or float8_e4m3fn. A
      number is its code times the scale of its position and head (kernels.make_quantized_cache).
    - number: the dtype of the numbers that codes stand for; None without codes.
    """

    keys: torch.Tensor
    values: torch.Tensor
    heads: int
    block_size: int
    head_dim: int
    value_dim: int
    scales: torch.Tensor | None = None
    number: torch.dtype | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of given keys and values, and of queries."""
        return self.number or self.keys.dtype

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy whole blocks: target[i] becomes source[i]. Both are int64 [n]; no block is in both."""
        for part in (self.keys, self.values):
            part = part.view(torch.uint8) if part.dtype.itemsize == 1 else part  # torch can't index float8
            part[target] = part[source]
        if self.scales is not None:
            self.scales[:, target] = self.scales[:, source]


def check_attention(
    query: torch.Tensor,
    cache: KVCache,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    kv_len: torch.Tensor,
) -> None:
    """Raise ValueError unless these tensors fit one another; see kernels.paged_attention."""
    _, heads, dim = query.shape
    if dim != cache.head_dim or heads % cache.heads or query.dtype != cache.dtype:
        raise ValueError(
            f"query must be [T, a multiple of {cache.heads}, {cache.head_dim}] of {cache.dtype}, "
            f"got {query.dtype} {tuple(query.shape)}"
        )
    sequences = kv_len.shape[0]
    if block_tables.dim() != 2 or block_tables.shape[0] != sequences or query_start.shape != (sequences + 1,):
        raise ValueError(
            f"for kv_len [{sequences}] block_tables must be [{sequences}, B] and query_start [{sequences + 1}], "
            f"got {tuple(block_tables.shape)} and {tuple(query_start.shape)}"
        )
