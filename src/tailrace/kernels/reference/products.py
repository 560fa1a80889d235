"""Products of many matrices, in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


def grouped_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, starts: torch.Tensor
) -> torch.Tensor:
    out = x.new_zeros((x.shape[0], weight.shape[1]))
    for group, (first, last) in enumerate(starts.unfold(0, 2, 1).tolist()):
        out[first:last] = F.linear(x[first:last], weight[group], None if bias is None else bias[group])
    return out
