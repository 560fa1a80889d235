"""Custom processors: functions of the whole row, which the operator registers by name (sampling/processors.py), with
arguments per request.

They may move the argmax. Neutral: none. The reference backend draws the rows with a processor, and only these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from tailrace.kernels.program import Dense
from tailrace.params import SamplingParams
from tailrace.sampling.processors import Processor, find_processor
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Dense]:
    found = slot.once("processors", lambda: find_processors(slot.params))
    return make_edits(found, slot.history.tokens if slot.history else [])


def find_processors(params: SamplingParams) -> list[tuple[Processor, Mapping[str, Any]]]:
    """Return the processors of a request, with their arguments."""
    return [(find_processor(name), given) for name, given in params.processors.items()]


def make_edits(found: Sequence[tuple[Processor, Mapping[str, Any]]], tokens: Sequence[int]) -> list[Dense]:
    """Return an edit for each of these processors.

    Args:
        tokens: of prompt and output so far.
    """
    # copies: a processor's changes must not reach the next token or the sequence
    return [Dense(lambda row, f=f, given=given: f(row, list(tokens), **deepcopy(dict(given)))) for f, given in found]


METHOD = LogitsEdit(edits, recalls=always, dense=always)
