"""Bans at one position: tokens that began something banned, or were ruled out by whoever looks at the text, may not be
drawn there again. Set per position by Slots.ban; the rewind itself is the engine's (exllamav2's banned strings,
koboldcpp's "antislop").
Neutral: none."""

from __future__ import annotations

from tailrace.kernels.program import Ban, ascending
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Ban]:
    banned = slot.banned.get(slot.num_output)
    return [Ban(ascending(banned))] if banned else []


METHOD = LogitsEdit(edits, moves=always)
