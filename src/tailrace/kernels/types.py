"""Dtypes of logits, by the codes that csrc/kernels.h has for them."""

from __future__ import annotations

import torch

from tailrace.errors import ParameterError

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def readable(logits: torch.Tensor) -> torch.Tensor:
    """The logits with contiguous entries in each row, as the kernels read them; themselves if they are so.

    Raises:
        ParameterError: they are not [rows, vocabulary] of a dtype that the kernels have.
    """
    if logits.dim() != 2 or logits.dtype not in CODES or logits.shape[1] == 0:
        raise ParameterError(
            f"logits must be [rows, vocabulary] of bf16, f16 or f32, got {logits.dtype} {tuple(logits.shape)}", "logits"
        )
    return logits if logits.stride(1) == 1 else logits.contiguous()
