"""Grammar bitmask: tokens whose bit is 0 become −inf. The mask is set per position by whoever matches the grammar (Slots.set_mask).
Neutral: no mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.kernels.program import Mask
from tailrace.sampling.methods.base import EditMethod

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def edits(slot: Slot) -> list[Mask]:
    return [] if slot.mask is None else [Mask(slot.mask)]


# wanted by nobody's parameters: a slot has it once it is given a mask
GRAMMAR = EditMethod(lambda params: True, edits)
