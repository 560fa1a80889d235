"""Logits processors of somebody else's, as a server loads them."""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates


class Adding(LogitsProcessor):
    """Adds `bonus` (5) to the logit of the token `favoured` of `extra_args`. calls: how often it was applied."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, tuple[int, float]] = {}
        self.calls = 0

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        def read(params: SamplingParams, *_: Any) -> tuple[int, float] | None:
            asked = params.extra_args or {}
            return (asked["favoured"], asked.get("bonus", 5.0)) if "favoured" in asked else None

        process_dict_updates(self.rows, batch_update, read)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for row, (token, bonus) in self.rows.items():
            logits[row, token] += bonus
        return logits


class Cutting(Adding):
    """Keeps the `favoured` largest logits of a row."""

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for row, (count, _) in self.rows.items():
            kept = logits[row].topk(count).indices
            values = logits[row, kept]
            logits[row] = float("-inf")
            logits[row, kept] = values
        return logits
