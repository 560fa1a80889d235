"""Moves a batch to the device."""

from __future__ import annotations

from dataclasses import replace

import torch

from tailrace.kernels.transfer import together
from tailrace.runners.base import Batch

FIELDS = ("token_ids", "positions", "slot_mapping", "query_start", "kv_len", "block_tables", "wanted")


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with all its tensors on the device."""
    if device.type == "cpu":
        return batch
    parts = [getattr(batch, field) for field in FIELDS]
    return replace(batch, **dict(zip(FIELDS, together(parts, device), strict=True)))
