"""Linear layers, in torch: nothing is packed."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Plain(NamedTuple):
    """weight [N, K], bias [N] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Plain:
    return Plain(weight, bias)


def linear(x: torch.Tensor, packed: Plain) -> torch.Tensor:
    if not isinstance(packed, Plain):
        raise ValueError(f"x of {x.dtype} does not fit weights packed by {type(packed).__module__}")
    return F.linear(x, packed.weight, packed.bias)
