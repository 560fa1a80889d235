"""Log-softmax of the row before all other edits, as transformers' processors see it in beam search.

The draw is the same with and without it, unless a later edit depends on a logit's sign or size: repetition penalties,
the length decay, processors. Neutral: false.

No kernel has it: the edits of a row would have to wait for a first pass over it. After a grammar's mask, the softmax
covers only the allowed tokens. A row without finite logits stays unchanged: its log-softmax would be NaN, but its
status is "empty".
"""

from __future__ import annotations

import torch

from tailrace.kernels.program import Dense
from tailrace.sampling.slot import LogitsEdit, Slot, always


def apply(row: torch.Tensor) -> None:
    """Normalise the row in place, unless every entry is −inf."""
    if row.isfinite().any():
        row.copy_(row.log_softmax(0))


def edits(slot: Slot) -> list[Dense]:
    return [Dense(apply)]


METHOD = LogitsEdit(edits, dense=always)
