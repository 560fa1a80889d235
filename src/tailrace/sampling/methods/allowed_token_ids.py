"""Allowed token ids: every other token becomes −inf, and so do tokens that contain banned text. Neutral: None."""

from __future__ import annotations

from tailrace.kernels.program import Mask, ascending, mask_of
from tailrace.sampling.slot import LogitsEdit, Slot


def edits(slot: Slot) -> list[Mask]:
    """Return at most one mask, and the same object as long as nothing changes."""
    mask, ids = slot.sequence_state.mask, slot.params.allowed_token_ids
    known = slot.derived.get("allowed")
    if known is None or known[0] is not mask:
        allowed = [] if ids is None else [mask_of(ascending(ids), slot.vocab_size)]
        if mask is not None:
            allowed = [Mask(mask & allowed[0].words if allowed else mask)]
        known = slot.derived["allowed"] = (mask, allowed)
    return known[1]


METHOD = LogitsEdit(edits, wanted=lambda params: params.allowed_token_ids is not None or params.bans)
