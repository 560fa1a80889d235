"""Classifier-free guidance (Sanchez et al., arXiv 2306.17806) on logits.

It moves a row away from the model's logits without the prompt, or with a negative prompt. It comes before all other
edits of a row. This module does not know which two sequences it combines.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tailrace.errors import ParameterError
from tailrace.kernels.plain import make_plain
from tailrace.kernels.rows import Rows, shown
from tailrace.kernels.transfer import together


def guide(conditional: torch.Tensor, unconditional: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return l_u + s · (l_c − l_u), float32 [R, V]: the logarithm of p_u^(1 − s) · p_c^s up to a constant per row.

    At s = 1 the result is the conditional row, and at s = 0 the unconditional row, bit for bit; the other row is not
    read. For other s:

    - A token with l_c = −∞ stays excluded.
    - A token with only l_u = −∞ is excluded for s < 1, the limit of the formula. For s > 1 the limit would be
      certainty, so the token keeps l_c.
    - NaN in either row gives NaN.

    Args:
        conditional, unconditional: [R, V], any float dtype; not modified.
        scale: [R], s ≥ 0.

    Raises:
        ParameterError: an argument is no such tensor, shapes differ, or a scale is negative or not finite.
    """
    for name, given in (("conditional", conditional), ("unconditional", unconditional), ("scale", scale)):
        if not isinstance(given, torch.Tensor) or given.is_complex():
            raise ParameterError(f"{name} must be a Tensor of numbers, got {shown(given)}", name)
        make_plain(name, given)  # torch itself reads what is negated lazily
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
    """Return the guided logits of each row, float32 [R, V], and rows that point to them. This is for samplers that do
    not apply guidance while they read.

    Args:
        logits: [L, V].
        rows: with guidance; its numbers are in range. On a GPU nothing waits.
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
    """Apply `guide` to pairs of rows of one tensor. On a GPU `scale` is not checked.

    Args:
        logits: [L, V].
        own, companion: int64 [R].
        kernel: use Triton's kernel, which copies no rows and waits for nothing. None: on a GPU.
    """
    if logits.is_cuda if kernel is None else kernel:
        from tailrace.kernels.gpu.guidance import guide as combined

        there = together([own, companion, scale.float()], logits.device)
        return combined(logits, there[0], there[1], there[2])
    return guide(logits[own], logits[companion], scale)


def raw_row(logits: torch.Tensor, rows: Rows, row: int) -> torch.Tensor:
    """Return a row's logits before its edits, [V]."""
    own = logits[int(rows.source[row])]
    if rows.guidance is None or (companion := int(rows.guidance.companion[row])) < 0:
        return own
    return guide(own[None], logits[companion][None], rows.guidance.scale[row : row + 1])[0]
