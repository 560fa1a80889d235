"""The same step drawn again and again on a GPU: how often anything of it had other bits. A race between the threads of
a program would show: what lies between kernels is in global memory, where no tool looks for them.

    python -m sampling.repeats [--without-barriers]

--without-barriers: the planted fault. Kernels are compiled without a wait between what is stored and what is loaded.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.step import StepReports
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Slots
from tailrace.sampling.backends import backend_of

VOCAB, TIMES = 5003, 1000


@triton.jit
def no_barrier():
    pass


def differing(asked: list[dict]) -> int:
    """Of so many repeats, over adversarial rows, one for each request."""
    slots = Slots(len(asked), VOCAB)
    for slot, fields in enumerate(asked):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[1, 2, 3], eos_token_ids=[0])
    logits = torch.randn(len(asked), VOCAB, generator=torch.Generator().manual_seed(9))
    logits[::3] = (logits[::3] * 2).round()  # many equal ones
    logits[1::3, 100:] = -math.inf
    gpu: Any = backend_of(slots, "gpu", torch.device("cuda"))
    rows = Rows.plain(range(len(asked)), range(len(asked)), [3] * len(asked))
    prepared = gpu.prepare(logits.cuda(), rows, StepReports(3))
    prepared.out.all.fill_(-7)
    gpu.draw(prepared)
    first, count = prepared.out.all.clone(), 0
    for _ in range(TIMES):
        prepared.out.all.fill_(-7)
        gpu.draw(prepared)
        count += not torch.equal(prepared.out.all[first != -7], first[first != -7])
    return count


REQUESTS: list[dict] = [
    {"typical_p": 0.9, "logprobs": 3},
    {"top_k": 700, "top_p": 0.99},
    {"temperature": 1.5},
    {"top_p": 0.999},
]


if __name__ == "__main__":
    if sys.argv[1:] == ["--without-barriers"]:
        tl.debug_barrier = no_barrier  # kernels look it up when they are compiled
    print(differing(REQUESTS))
