"""Dtypes of logits, and their codes in csrc/kernels.h."""

from __future__ import annotations

import torch

from tailrace.errors import ParameterError
from tailrace.kernels.plain import make_plain

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def readable(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits with contiguous entries in each row, as the kernels read them, without a copy if possible.

    Raises:
        ParameterError: they are not [rows, vocabulary] of a dtype that the kernels support, or not plain (plain.py).
    """
    logits = make_plain("logits", logits)
    if logits.dim() != 2 or logits.dtype not in CODES or logits.shape[1] == 0:
        raise ParameterError(
            f"logits must be [rows, vocabulary] of bf16, f16 or f32, got {logits.dtype} {tuple(logits.shape)}", "logits"
        )
    return logits if logits.stride(1) == 1 else logits.contiguous()
