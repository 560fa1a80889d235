"""Logit bias: l[id] += bias. Neutral: {}. (OpenAI's range −100 … 100 is the HTTP schema's business.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tailrace.sampling.methods.base import Edit

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def prepare(slot: Slot, device: torch.device) -> dict[str, torch.Tensor]:
    bias = slot.params.logit_bias
    return {
        "bias_ids": torch.tensor(list(bias), dtype=torch.int64, device=device),
        "bias": torch.tensor(list(bias.values()), dtype=torch.float32, device=device),
    }


def apply(row: torch.Tensor, slot: Slot) -> None:
    row[slot.extra["bias_ids"]] += slot.extra["bias"]


LOGIT_BIAS = Edit(lambda params: bool(params.logit_bias), apply, prepare)
