"""Classifier-free guidance (Sanchez et al., arXiv 2306.17806): away from what the model says without the prompt, or
with a negative one.

A pure function on logits. It comes before everything else that happens to a row; who the two sequences are is others'
business.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tailrace.errors import ParameterError
from tailrace.kernels.rows import Rows, shown
from tailrace.kernels.transfer import together


def guide(conditional: torch.Tensor, unconditional: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """l_u + s · (l_c − l_u), float32 [R, V]: the logarithm of p_u^(1 − s) · p_c^s, but for a constant per row.

    At s = 1 it is the conditional row and at s = 0 the unconditional one, bit for bit; the other is then not looked at.
    Otherwise, with −∞: what the conditional excludes stays excluded; what the unconditional alone excludes is excluded
    where s < 1, the limit of the formula, and where s > 1, whose limit would be certainty, it keeps the conditional's
    own logit. NaN in either is NaN.

    Args:
        conditional, unconditional: [R, V], any float dtype; not modified. scale: [R], s ≥ 0.

    Raises:
        ParameterError: these are no such tensors, shapes differ, or a scale is negative or not finite.
    """
    for name, given in (("conditional", conditional), ("unconditional", unconditional), ("scale", scale)):
        if not isinstance(given, torch.Tensor) or given.is_complex() or given.is_meta:
            raise ParameterError(f"{name} must be a Tensor of numbers, got {shown(given)}", name)
    if (
        conditional.device != unconditional.device
        or conditional.dim() != 2
        or conditional.shape != unconditional.shape
        or scale.shape != conditional.shape[:1]
    ):
        raise ParameterError(
            f"conditional and unconditional must be [R, V] and scale [R], got {tuple(conditional.shape)}, "
            f"{tuple(unconditional.shape)} and {tuple(scale.shape)}",
            "conditional",
        )
    s = scale.to(conditional.device, torch.float32)[:, None]
    if not bool(((s >= 0) & s.isfinite()).all()):
        raise ParameterError(f"scale must be finite and at least 0, got {scale.tolist()!r:.100}", "scale")
    c, u = conditional.float(), unconditional.float()
    guided = u + s * (c - u)
    if not bool(guided.isfinite().all()):
        nan = c.isnan() | u.isnan()
        guided = torch.where(u.isneginf(), torch.where(s > 1, c, -torch.inf), guided)
        guided = torch.where(c.isneginf(), -torch.inf, guided)
        guided = torch.where(nan, torch.nan, guided)
    if bool((s <= 1).any()):
        guided = torch.where(s == 1, c, torch.where(s == 0, u, guided))
    return guided


def combine_rows(logits: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, Rows]:
    """What the rows are drawn from, where that is not done while they are read: their own logits, float32 [R, V], and
    rows that say so.

    Args:
        logits: [L, V]. rows: with guidance; its numbers are in range, and on a GPU nothing waits.
    """
    guidance = rows.guidance
    assert guidance is not None
    alone = guidance.companion < 0
    companion = torch.where(alone, rows.source, guidance.companion)
    scale = torch.where(alone, 1.0, guidance.scale)
    if rows.num_rows == 0:
        return logits, replace(rows, guidance=None)
    mixed = guide_rows(logits, rows.source, companion, scale)
    return mixed, replace(rows, source=torch.arange(rows.num_rows), guidance=None)


def guide_rows(
    logits: torch.Tensor, own: torch.Tensor, companion: torch.Tensor, scale: torch.Tensor, *, kernel: bool | None = None
) -> torch.Tensor:
    """`guide` for pairs of rows of one tensor: logits [L, V]; own, companion int64 [R]; scale as there, on a GPU not
    checked.

    Args:
        kernel: Triton's, which needs no copies of the rows and waits for nothing; None: on a GPU.
    """
    if logits.is_cuda if kernel is None else kernel:
        from tailrace.kernels.gpu.guidance import guide as combined

        there = together([own, companion, scale.float()], logits.device)
        return combined(logits, there[0], there[1], there[2])
    return guide(logits[own], logits[companion], scale)


def raw_row(logits: torch.Tensor, rows: Rows, row: int) -> torch.Tensor:
    """[V]: a row's logits before its edits."""
    own = logits[int(rows.source[row])]
    if rows.guidance is None or (companion := int(rows.guidance.companion[row])) < 0:
        return own
    return guide(own[None], logits[companion][None], rows.guidance.scale[row : row + 1])[0]
