"""Exponential decay of the length (transformers' ExponentialDecayLengthPenalty): the end becomes likelier with each
token.

From the (start + 1)-th output token on, each EOS id gets l += |l| · (factor^i − 1), where i is the number of output
tokens beyond `start`. A factor below 1 makes the end less likely. −inf stays. The power is at most 1e30. Neutral: null.

It has no effect while EOS is banned (min_tokens), or if EOS does not end the text (ignore_eos).
"""

from __future__ import annotations

from tailrace.kernels.program import Lift, ascending
from tailrace.params import SamplingParams
from tailrace.sampling.slot import LogitsEdit, Slot, always

LARGEST = 1e30  # beyond any logit, and far from overflow


def edits(slot: Slot) -> list[Lift]:
    decay = slot.params.exponential_decay_length_penalty
    assert decay is not None
    start, factor = decay
    beyond = slot.num_output - start
    if beyond <= 0 or not slot.eos_token_ids:
        return []
    ids = slot.once("eos", lambda: ascending(slot.eos_token_ids))
    return [Lift(ids, power(factor, beyond) - 1.0)]


def power(factor: float, exponent: int) -> float:
    """Return factor^exponent, at most LARGEST."""
    try:
        return min(factor**exponent, LARGEST)
    except OverflowError:
        return LARGEST


def wanted(params: SamplingParams) -> bool:
    return params.exponential_decay_length_penalty is not None and not params.ignore_eos


METHOD = LogitsEdit(edits, wanted=wanted, moves=always)
