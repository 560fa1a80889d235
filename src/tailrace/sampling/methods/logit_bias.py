"""Logit bias: l[id] += bias. Neutral: {}. (OpenAI's range −100 … 100 is the HTTP schema's business.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.kernels.program import Add
from tailrace.sampling.methods.base import EditMethod

if TYPE_CHECKING:
    from tailrace.sampling.slots import Slot


def edits(slot: Slot) -> list[Add]:
    bias = sorted(slot.params.logit_bias.items())
    return [Add(np.array([i for i, _ in bias], dtype=np.uint32), np.array([b for _, b in bias], dtype=np.float32))]


LOGIT_BIAS = EditMethod(lambda params: bool(params.logit_bias), edits)
