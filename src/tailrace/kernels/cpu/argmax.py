"""Greedy argmax by csrc/argmax.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.types import CODES


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if logits.dim() != 2 or logits.dtype not in CODES or logits.shape[1] == 0:
        raise ValueError(
            f"logits must be [rows, vocabulary] of bf16, f16 or f32, got {logits.dtype} {tuple(logits.shape)}"
        )
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64)
    status = torch.empty(rows, dtype=torch.int32)
    _cpu.argmax(
        logits.data_ptr(), CODES[logits.dtype], rows, vocab, logits.stride(0), ids.data_ptr(), status.data_ptr()
    )
    return ids, status
