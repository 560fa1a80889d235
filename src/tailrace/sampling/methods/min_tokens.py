"""min_tokens: EOS and stop ids are −inf until so many tokens are out. With ignore_eos, EOS ends nothing, so only the stop
ids are banned. Neutral: 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tailrace.sampling.methods.base import Edit

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def prepare(slot: Slot, device: torch.device) -> dict[str, torch.Tensor]:
    eos = () if slot.params.ignore_eos else slot.eos_token_ids
    return {"enders": torch.tensor(sorted({*eos, *slot.params.stop_token_ids}), dtype=torch.int64, device=device)}


def apply(row: torch.Tensor, slot: Slot) -> None:
    if slot.num_output < slot.params.min_tokens:
        row[slot.extra["enders"]] = float("-inf")


MIN_TOKENS = Edit(lambda params: params.min_tokens > 0, apply, prepare)
