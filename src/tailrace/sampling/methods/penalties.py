"""Repetition, frequency and presence penalty, in this order, on the distinct tokens of the sequence.

Repetition r (CTRL, arXiv 1909.05858), scope prompt and output: l > 0 ? l / r : l · r, once per distinct token. Neutral 1.
Frequency f and presence p (OpenAI), scope output: l −= f · count + p. Neutral 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tailrace.params import SamplingParams
from tailrace.sampling.methods.base import Edit

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def apply(row: torch.Tensor, slot: Slot) -> None:
    history, params = slot.history, slot.params
    if history is None or history.size == 0:
        return
    ids = history.ids[: history.size].to(row.device)
    count = history.count[: history.size].to(row.device)
    values = row[ids]
    if params.repetition_penalty != 1.0:
        r = params.repetition_penalty
        values = torch.where(values > 0, values / r, values * r)
    row[ids] = values - params.frequency_penalty * count - params.presence_penalty * (count > 0)


def wanted(params: SamplingParams) -> bool:
    return params.penalised


PENALTIES = Edit(wanted, apply)
