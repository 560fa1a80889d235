"""Logit bias: l[id] += bias. Neutral: {}. (The HTTP schema checks OpenAI's range −100 … 100.)"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tailrace.kernels.program import Add
from tailrace.sampling.slot import LogitsEdit, Slot


def edits(slot: Slot) -> list[Add]:
    return [slot.once("logit_bias", lambda: sorted_bias(slot.params.logit_bias))]


def sorted_bias(bias: Mapping[int, float]) -> Add:
    ids = sorted(bias)
    return Add(np.array(ids, dtype=np.uint32), np.array([bias[i] for i in ids], dtype=np.float32))


METHOD = LogitsEdit(edits)
