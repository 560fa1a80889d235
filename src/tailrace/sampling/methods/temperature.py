"""Temperature: l / T. 0 is greedy and never comes here; 1 is neutral.

The maximum is subtracted first, so a tiny T (1e-45) overflows to −inf below the maximum and never to +inf: those tokens'
probability is 0 in any arithmetic, and they leave the survivors.
"""

from __future__ import annotations

from tailrace.params import SamplingParams
from tailrace.sampling.methods.base import Refinement
from tailrace.sampling.row import Survivors


def apply(survivors: Survivors, params: SamplingParams) -> Survivors:
    below = (survivors.logits.double() - survivors.logits.max().double()) / params.temperature
    scaled = Survivors(survivors.ids, below.float())
    return scaled.keep(scaled.logits.isfinite())


TEMPERATURE = Refinement(lambda params: params.temperature not in (0.0, 1.0), apply)
