"""Log-softmax of the row before all other edits: what transformers' processors get in its beam search. The draw is the
same with and without it, but for edits that look at a logit's sign or size: repetition penalties, the length decay,
processors. Neutral: false.

No kernel: the edits of a row would have to wait for a first pass over it. After a grammar's mask it is of what the mask
lets through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tailrace.kernels.program import Dense
from tailrace.sampling.methods.base import LogitsEdit, always

if TYPE_CHECKING:
    from tailrace.sampling.slot import Slot


def apply(row: torch.Tensor) -> None:
    row.copy_(row.log_softmax(0))


def edits(slot: Slot) -> list[Dense]:
    return [Dense(apply)]


METHOD = LogitsEdit(edits, dense=always)
