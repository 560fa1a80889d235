"""Encoder repetition penalty e (transformers' EncoderRepetitionPenaltyLogitsProcessor): favours the prompt's tokens.

With r = 1 / e: l > 0 ? l / r : l · r, once per distinct token of the prompt, whatever the output contains. An e below 1
penalises the tokens. Neutral 1.
"""

from __future__ import annotations

import numpy as np

from tailrace import _cpu
from tailrace.kernels.program import Penalty
from tailrace.sampling.slot import LogitsEdit, Slot, always


def edits(slot: Slot) -> list[Penalty]:
    return [slot.once("of the prompt", lambda: of_the_prompt(slot))]


def of_the_prompt(slot: Slot) -> Penalty:
    """Return the edit. It stays the same for the whole request."""
    assert slot.history is not None
    counts, ids = _cpu.Counts(), np.array(slot.history.tokens[: slot.history.num_prompt], dtype=np.int64)
    counts.extend(ids.ctypes.data, ids.size, 1, 0)
    return Penalty(counts, 1.0 / slot.params.encoder_repetition_penalty, 0.0, 0.0, fixed=True)


METHOD = LogitsEdit(edits, recalls=always)
