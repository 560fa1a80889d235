"""The two kinds of method.

An **edit** changes single entries of a row [V] (float32) in place; it may move the argmax, so greedy rows get it too. A
**refinement** maps survivors to survivors; it never moves the argmax, so greedy rows skip it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tailrace.params import SamplingParams

if TYPE_CHECKING:
    from tailrace.sampling.row import Survivors
    from tailrace.sampling.slots import Slot


def nothing(slot: Slot, device: torch.device) -> dict[str, torch.Tensor]:
    """Most edits derive nothing from the parameters."""
    return {}


@dataclass(frozen=True, slots=True)
class Edit:
    """wanted: does this request need it at all. apply(row, slot): in place. prepare: tensors made once, when the request joins,
    found again in slot.extra."""

    wanted: Callable[[SamplingParams], bool]
    apply: Callable[[torch.Tensor, Slot], None]
    prepare: Callable[[Slot, torch.device], dict[str, torch.Tensor]] = nothing


@dataclass(frozen=True, slots=True)
class Refinement:
    """wanted: does this request need it at all. apply(survivors, params) → survivors, at least one."""

    wanted: Callable[[SamplingParams], bool]
    apply: Callable[[Survivors, SamplingParams], Survivors]
