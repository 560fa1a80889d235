"""Products of many matrices, in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Grouped(NamedTuple):
    """The layers of all groups: weight [groups, N, K]; bias [groups, N] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


def pack_grouped(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Grouped:
    return Grouped(weight.detach(), None if bias is None else bias.detach())


def grouped_linear(x: torch.Tensor, packed: Grouped, starts: torch.Tensor) -> torch.Tensor:
    if not isinstance(packed, Grouped):
        raise ValueError(f"x of {x.dtype} does not fit weights packed by {type(packed).__module__}")
    weight, bias = packed
    out = x.new_zeros((x.shape[0], weight.shape[1]))
    for group, (first, last) in enumerate(starts.unfold(0, 2, 1).tolist()):
        out[first:last] = F.linear(x[first:last], weight[group], None if bias is None else bias[group])
    return out
