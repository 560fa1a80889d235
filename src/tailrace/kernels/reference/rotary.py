"""Rotary position embedding, in torch."""

from __future__ import annotations

import torch


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    width = cos.shape[-1]
    turned = x[..., :width]
    half = width // 2
    swapped = torch.cat((-turned[..., half:], turned[..., :half]), -1)
    x[..., :width] = turned * cos[:, None] + swapped * sin[:, None]
