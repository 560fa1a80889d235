"""The whole sampler by csrc/sample.cpp: one call per step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import torch

from tailrace import _cpu
from tailrace.kernels.cpu.program import Programs, StepRecord
from tailrace.kernels.cpu.types import CODES


@dataclass(frozen=True, slots=True)
class Outcome:
    """N requests, W tokens at most each. token_ids int64 [N, W], −1 where there is none; num_tokens int64 [N]; status int32 [N];
    kept int64 [N, W], how many tokens the refinements left, −1 where nothing was removed. Where a program asks: logprob
    float64 and rank int64 [N, W], top_ids int64 and top_logprobs float64 [N, W, top], entropy float64 [N, W, 2]."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    kept: torch.Tensor
    logprob: torch.Tensor
    rank: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    entropy: torch.Tensor


EMPTY = torch.empty(0)


def nothing(n: int, width: int) -> Outcome:
    """An outcome that is yet to be filled in, without reports."""
    return Outcome(
        torch.full((n, width), -1), torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int32),
        torch.full((n, width), -1), EMPTY, EMPTY, EMPTY, EMPTY, EMPTY,
    )  # fmt: skip


def sample(
    logits: torch.Tensor,
    programs: Programs,
    *,
    slot: torch.Tensor,
    source: torch.Tensor,
    position: torch.Tensor,
    start: torch.Tensor,
    draft: torch.Tensor,
    rule: torch.Tensor | None = None,
    proposals: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    width: int = 1,
    top: int = 0,
    reports: bool = False,
) -> Outcome:
    """Draw (and verify) one step. The arguments as in sampling/rows.py, all contiguous; slots are the caller's to check.

    Args:
        logits: [L, V], bf16, f16 or f32, rows may be strided. Not modified.
        rule: int32 [N], or None. proposals: float32 [R, V], or None. skip: uint8 [N], 1 leaves a request out.
        width: the most tokens a request may get. top: the most alternatives a program asks for. reports: some program asks for any.

    Raises:
        ValueError: shapes or dtypes do not fit, or a source is not a row of the logits.
    """
    if logits.dim() != 2 or logits.dtype not in CODES or logits.shape[1] == 0:
        raise ValueError(
            f"logits must be [rows, vocabulary] of bf16, f16 or f32, got {logits.dtype} {tuple(logits.shape)}"
        )
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    n, vocab = start.numel() - 1, logits.shape[1]
    if source.numel() and not 0 <= int(source.min()) <= int(source.max()) < logits.shape[0]:
        raise ValueError(f"source must be in 0 … {logits.shape[0] - 1}, got {source.tolist()}")
    if proposals is not None and (
        proposals.shape != (slot.numel(), vocab) or proposals.dtype != torch.float32 or not proposals.is_contiguous()
    ):
        raise ValueError(
            f"proposals must be contiguous float32 [{slot.numel()}, {vocab}], got {tuple(proposals.shape)}"
        )
    described: dict[str, torch.Tensor] = {}
    if reports:
        described = {
            "logprob": torch.zeros((n, width), dtype=torch.float64),
            "rank": torch.zeros((n, width), dtype=torch.int64),
            "top_ids": torch.empty((n, width, top), dtype=torch.int64),
            "top_logprobs": torch.empty((n, width, top), dtype=torch.float64),
            "entropy": torch.empty((n, width, 2), dtype=torch.float64),
        }
    out = replace(nothing(n, width), **described)
    pointer = lambda x: None if x is None else x.data_ptr()  # noqa: E731
    step = StepRecord(
        logits.data_ptr(), CODES[logits.dtype], vocab, logits.stride(0), n, width, programs.address,
        slot.data_ptr(), source.data_ptr(), position.data_ptr(), start.data_ptr(), draft.data_ptr(),
        pointer(rule), pointer(proposals), pointer(skip),
        out.token_ids.data_ptr(), out.num_tokens.data_ptr(), out.status.data_ptr(), out.kept.data_ptr(),
        out.logprob.data_ptr(), out.rank.data_ptr(), out.top_ids.data_ptr(), out.top_logprobs.data_ptr(),
        out.entropy.data_ptr(), top,
    )  # fmt: skip
    _cpu.sample(ctypes.addressof(step))
    return out
