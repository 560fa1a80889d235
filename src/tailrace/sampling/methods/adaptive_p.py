"""adaptive-p (llama.cpp): favours tokens whose probability is near a target. The target moves against the probabilities
drawn before.

a = clamp(2 · target − average, 0, 1); l' = 5 − 10 · d² / (1 + d), d = |p − a| / 0.3, with p among the candidates.
`average` is the weighted mean of the drawn tokens' p: each step weighs `adaptive_decay` times the next one. It starts
at the target. Runs last. Off below 0.
"""

from __future__ import annotations

import math

from tailrace.kernels.constants import ADAPTIVE_PEAK, ADAPTIVE_SHARPNESS, ADAPTIVE_WIDTH
from tailrace.kernels.program import Stage
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.slot import Context, Refinement, Slot


def apply(candidates: Candidates, context: Context) -> Candidates:
    slot = context.slot
    slot.basis = candidates  # the average uses their probabilities before this method
    average = slot.state["adaptive_sum"] / slot.state["adaptive_weight"]
    aim = min(1.0, max(0.0, 2.0 * slot.params.adaptive_target - average))
    d = (candidates.probabilities() - aim).abs() / ADAPTIVE_WIDTH
    return candidates.rescaled(ADAPTIVE_PEAK - ADAPTIVE_SHARPNESS * d * d / (1.0 + d))


def begin(params: SamplingParams) -> dict[str, float]:
    weight = 1.0 / (1.0 - params.adaptive_decay)
    return {"adaptive_sum": params.adaptive_target * weight, "adaptive_weight": weight}


def learn(slot: Slot, logprob: float) -> None:
    decay = slot.params.adaptive_decay
    slot.state["adaptive_sum"] = math.exp(logprob) + decay * slot.state["adaptive_sum"]
    slot.state["adaptive_weight"] = 1.0 + decay * slot.state["adaptive_weight"]


METHOD = Refinement(
    apply, lambda params: Stage("adaptive", a=params.adaptive_target, b=params.adaptive_decay), begin=begin, learn=learn
)
