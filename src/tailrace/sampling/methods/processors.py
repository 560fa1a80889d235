"""Custom processors: functions of the whole row, which the operator registers by name (sampling/processors.py), with
arguments per request.

They may move the argmax. Neutral: none. The reference backend draws the rows with a processor, and only these.
"""

from __future__ import annotations

from copy import deepcopy

from tailrace.kernels.program import Dense
from tailrace.sampling.processors import find_processor
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Dense]:
    found = slot.once(
        "processors", lambda: [(find_processor(name), given) for name, given in slot.params.processors.items()]
    )
    tokens = slot.history.tokens if slot.history else []
    # copies: a processor's changes must not reach the next token or the sequence
    return [Dense(lambda row, f=f, given=given: f(row, list(tokens), **deepcopy(dict(given)))) for f, given in found]


METHOD = LogitsEdit(edits, recalls=always, dense=always)
