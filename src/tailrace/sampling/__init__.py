"""Logits → token ids, with everyone's own parameters.

slots = Slots(num_slots=8, vocab_size=V)
slots.add(0, SamplingParams(temperature=0.8, top_p=0.95), key=request_key(seed, 0), prompt=ids)
sampled = Sampler(slots)(logits, Rows.plain(slot=[0], source=[0], position=[len(ids)]))

Without slots, for engines that keep the state of their requests themselves:

ids = sample(logits, temperature=[0.8, 0.0], top_p=0.95, seed=[1, 2], position=lengths)
"""

from tailrace.kernels.rows import Guidance, Rows
from tailrace.params import SamplingParams
from tailrace.sampling.keys import KeySource, request_key
from tailrace.sampling.sampler import Sampled, Sampler
from tailrace.sampling.slots import SequenceState, Slots
from tailrace.sampling.stateless import sample
from tailrace.sampling.token_for_each import token_for_each

__all__ = [
    "Guidance",
    "KeySource",
    "Rows",
    "Sampled",
    "Sampler",
    "SamplingParams",
    "SequenceState",
    "Slots",
    "request_key",
    "sample",
    "token_for_each",
]
