"""The output projection and a draw from its logits, in torch."""

from __future__ import annotations

import torch

from tailrace.kernels.reference.argmax import argmax
from tailrace.kernels.reference.noise import gumbel


def sample_head(
    hidden: torch.Tensor, weight: torch.Tensor, key: torch.Tensor, position: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = (hidden @ weight.T).float()
    ids, status = argmax(logits)
    every = torch.arange(weight.shape[0], device=hidden.device)
    for row, t in enumerate(temperature.tolist()):
        if t > 0 and int(status[row]) == 0:
            noise = gumbel(int(key[row]), int(position[row]), every, 0)
            scores = logits[row].double() / t + noise.double()
            ids[row] = (scores == scores.max()).nonzero()[0, 0]
    return ids, status
