"""Allowed token ids: every other token becomes −inf. Neutral: None."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tailrace.sampling.methods.base import Edit

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def prepare(slot: Slot, device: torch.device) -> dict[str, torch.Tensor]:
    return {"allowed": torch.tensor(sorted(set(slot.params.allowed_token_ids or ())), device=device)}


def apply(row: torch.Tensor, slot: Slot) -> None:
    ids = slot.extra["allowed"]
    values = row[ids]
    row.fill_(float("-inf"))
    row[ids] = values


ALLOWED_TOKEN_IDS = Edit(lambda params: params.allowed_token_ids is not None, apply, prepare)
