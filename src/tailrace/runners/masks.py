"""The positions that a layer attends to, read from the mask that the layer's model makes.

transformers' models make their masks with functions of (query position, key position). A mask that is made under our
name keeps what its function says, however far the positions. Knows nothing of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tailrace.base.extras import require_extra

ATTRIBUTE = "tailrace_mask"  # where a mask tensor carries its AttentionMask


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """Causal, and within it: window: only the last `window` positions, the token's own included; chunk: only positions
    p of the token's own chunk, ⌊p / chunk⌋. 0: no such limit."""

    window: int = 0
    chunk: int = 0

    def mask_positions(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return bool, of positions that broadcast."""
        seen = key <= query
        if self.window:
            seen = seen & (key > query - self.window)
        if self.chunk:
            seen = seen & (key // self.chunk == query // self.chunk)
        return seen

    def make_dense(self, length: int, device: torch.device) -> torch.Tensor:
        """Return bool [length, length], whose rows are queries."""
        at = torch.arange(length, device=device)
        return self.mask_positions(at[:, None], at[None])


def identify_mask(function: Callable[..., torch.Tensor], size: int, device: torch.device) -> AttentionMask | None:
    """Return the AttentionMask that a mask function (batch, head, query, key) → bool computes; None if it is another.

    Args:
        size: of the mask's window or chunk; 0 without either. The function is compared at the first positions and
            around the multiples of `size`.
        device: the model's, where the function may hold tensors (chunks: the padding on the left).
    """
    around = {max(0, size * i + j) for i in range(5) for j in (-1, 0, 1, 2)}
    edges = torch.tensor(sorted({*range(64), *around, size // 2}), device=device)
    query, key = edges[:, None], edges[None]
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    try:
        got = function(zero, zero, query, key).expand(len(edges), len(edges))
    except (IndexError, RuntimeError, TypeError):  # a table of this pass's tokens
        return None
    kinds = (AttentionMask(), AttentionMask(window=size), AttentionMask(chunk=size)) if size else (AttentionMask(),)
    return next((kind for kind in kinds if torch.equal(kind.mask_positions(query, key), got)), None)


def made_mask(
    *args: Any, mask_function: Callable[..., torch.Tensor] | None = None, local_size: int | None = None, **options: Any
) -> torch.Tensor:
    """Return the mask function to register with transformers: its eager mask, which carries its AttentionMask."""
    with require_extra("serve"):
        from transformers.masking_utils import causal_mask_function, eager_mask

    function: Any = causal_mask_function if mask_function is None else mask_function
    options["allow_is_bidirectional_skip"] = False
    mask = eager_mask(*args, mask_function=function, local_size=local_size, **options)
    setattr(mask, ATTRIBUTE, identify_mask(function, int(local_size or 0), mask.device))
    return mask


def read_mask_tensor(tensor: torch.Tensor, length: int) -> AttentionMask | None:
    """Return the AttentionMask of a mask tensor [1, 1 or H, T, T] in a pass of `length` tokens; None if none says the
    same. A tensor that a model has made itself must be plainly causal."""
    said: AttentionMask | None = getattr(tensor, ATTRIBUTE, AttentionMask())
    if said is None or tensor.dim() != 4 or tensor.shape[-2:] != (length, length):
        return None
    seen = tensor if tensor.dtype == torch.bool else tensor == 0
    hidden = ~seen if tensor.dtype == torch.bool else tensor <= torch.finfo(tensor.dtype).min / 2
    expected = said.make_dense(length, tensor.device)
    return said if bool((seen == expected).all()) and bool((hidden == ~expected).all()) else None
