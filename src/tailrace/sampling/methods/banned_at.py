"""Bans at one position: tokens that started banned text, or that a checker of the text excluded, can't be drawn there
again.

Slots.ban sets them per position. The engine rewinds the sequence (exllamav2's banned strings, koboldcpp's "antislop").
Neutral: none.
"""

from __future__ import annotations

from tailrace.kernels.program import Ban, ascending
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Ban]:
    banned = slot.banned.get(slot.num_output)
    return [Ban(ascending(banned))] if banned else []


METHOD = LogitsEdit(edits, moves=always)
