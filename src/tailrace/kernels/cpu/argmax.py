"""Greedy argmax by csrc/sample/argmax.cpp."""

from __future__ import annotations

import torch

from tailrace import _cpu
from tailrace.kernels.types import CODES, readable


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = readable(logits)
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64)
    status = torch.empty(rows, dtype=torch.int32)
    _cpu.argmax(
        logits.data_ptr(), CODES[logits.dtype], rows, vocab, logits.stride(0), ids.data_ptr(), status.data_ptr()
    )
    return ids, status
