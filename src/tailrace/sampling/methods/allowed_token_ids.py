"""Allowed token ids: every other token becomes −inf. Neutral: None."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.kernels.program import Mask, ascending, mask_of
from tailrace.sampling.methods.base import EditMethod

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def edits(slot: Slot) -> list[Mask]:
    return [slot.once("allowed", lambda: mask_of(ascending(slot.params.allowed_token_ids or ()), slot.vocab_size))]


ALLOWED_TOKEN_IDS = EditMethod(lambda params: params.allowed_token_ids is not None, edits)
