"""The cases of the GPU benchmarks: what the rows of a step ask for, and the step itself, ready to be launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tailrace.kernels.rows import Rule
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots, request_key

HISTORY = 1000
DRAFTS = 4
STRICT_IDS = 64  # tokens that the grammar allows on every second row; other rows allow nearly all

Asked = dict[str, Any]
JOINT: Asked = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
SEEDED = JOINT | {"seed": 7}
PENALTIES: Asked = {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}
# each request asks for something else that the kernels support
MIXED: tuple[Asked, ...] = (
    {"temperature": 0.0},
    JOINT,
    {"temperature": 0.8, "min_p": 0.05},
    {"temperature": 0.7, "top_p": 0.95, "seed": 3},
    {"top_k": 40, "logprobs": 3},
    PENALTIES | {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 0.0, "frequency_penalty": 0.5},
    {"typical_p": 0.9},
    {"temperature": 1.2},
    {"temperature": 0.8, "top_n_sigma": 1.0},
    {"eta_cutoff": 1e-3},
    {"min_p": 0.02, "xtc_probability": 0.5},
    {"logit_bias": {5: 2.0, 17: -3.0}, "top_k": 20},
    {"dynatemp_range": 0.5, "top_k": 100},
    {"bad_words": ((3,), (9,)), "top_p": 0.8},
    JOINT | {"logprobs": 5, "logprobs_mode": "processed"},
)


@dataclass(frozen=True)
class GpuCase:
    """asked: row r uses asked[r % n]. past: tokens of history. rule: how drafts are verified; None: no drafts. masked:
    grammars on all rows, or on every third. rows: the kind of logits. proposed: a draft is drawn of each row, and q."""

    asked: tuple[Asked, ...]
    past: int = 1
    rule: Rule | None = None
    masked: int = 0
    rows: str = "peaked"
    proposed: bool = False


CASES: dict[str, GpuCase] = {
    "greedy": GpuCase(({"temperature": 0.0},)),
    "temperature 0.8": GpuCase(({"temperature": 0.8},)),
    "min-p 0.05": GpuCase(({"temperature": 0.8, "min_p": 0.05},)),
    "top-k 50": GpuCase(({"temperature": 0.8, "top_k": 50},)),
    "top-p 0.9": GpuCase(({"temperature": 0.8, "top_p": 0.9},)),
    "joint": GpuCase((JOINT,)),
    "joint, seeds": GpuCase((SEEDED,)),
    "… + 3 penalties": GpuCase((SEEDED | PENALTIES,), past=HISTORY),
    "… + 5 logprobs": GpuCase((SEEDED | PENALTIES | {"logprobs": 5},), past=HISTORY),
    "joint, 5 logprobs": GpuCase((SEEDED | {"logprobs": 5},)),
    "joint, grammar": GpuCase((SEEDED,), masked=1),
    "typical 0.9": GpuCase(({"typical_p": 0.9},)),
    "drafts, exact": GpuCase((SEEDED,), rule="exact"),
    "drafts, rejection": GpuCase((SEEDED,), rule="rejection"),
    "a draft and q, temperature 0.8": GpuCase(({"temperature": 0.8},), proposed=True),
    "a draft and q, joint": GpuCase((SEEDED,), proposed=True),
    "mixed": GpuCase(MIXED, past=HISTORY, masked=3),
    "flat: temperature 0.8": GpuCase(({"temperature": 0.8},), rows="flat"),
    "flat: top-p 0.9": GpuCase(({"temperature": 0.8, "top_p": 0.9},), rows="flat"),
    "flat: joint, seeds": GpuCase((SEEDED,), rows="flat"),
    "flat: typical 0.9": GpuCase(({"typical_p": 0.9},), rows="flat"),
}


@dataclass(frozen=True)
class GpuWork:
    """A step of a case. logits: [R, V], on the device."""

    slots: Slots
    rows: Rows
    logits: torch.Tensor
    proposed: bool = False

    @property
    def top(self) -> int | None:
        """The most logprobs asked for; None: none."""
        asked = [slot.params.logprobs for slot in self.slots.slots if slot is not None and slot.reported]
        return max((count or 0 for count in asked), default=None)

    def sampler(self) -> Sampler:
        return Sampler(self.slots, "gpu")


def work(case: GpuCase, logits: torch.Tensor, rows: int) -> GpuWork:
    """The step of a case on `rows` rows of the logits. With drafts each request has DRAFTS + 1 rows, and there is at
    least one request."""
    if case.rule is None:
        return GpuWork(
            joined(case, rows, logits.shape[1]), plain(case, rows, logits.shape[1]), logits[:rows], case.proposed
        )
    requests = max(1, rows // (DRAFTS + 1))
    used = logits[: requests * (DRAFTS + 1)]
    likely = used.argmax(-1).view(requests, -1)[:, :DRAFTS].tolist()
    first = [case.past] * requests
    rules: list[Rule] = [case.rule] * requests
    drafted = Rows.drafted(range(requests), first, likely, rules)
    return GpuWork(joined(case, requests, logits.shape[1]), drafted, used)


def joined(case: GpuCase, requests: int, vocab: int) -> Slots:
    """A slot for each request, each with a history of its own."""
    slots, rng = Slots(requests, vocab), torch.Generator().manual_seed(1)
    asked = [SamplingParams(**fields) for fields in case.asked]
    for slot in range(requests):
        history = torch.randint(0, vocab, (case.past,), generator=rng).tolist()
        params = asked[slot % len(asked)]
        half = -(-case.past // 2)
        slots.add(slot, params, key=request_key(params.seed, 0), prompt=history[:half], output=history[half:])
    return slots


def plain(case: GpuCase, rows: int, vocab: int) -> Rows:
    """Rows without drafts."""
    if not case.masked:
        return Rows.plain(range(rows), range(rows), [case.past] * rows)
    place = [row if row % case.masked == 0 else -1 for row in range(rows)]
    return Rows.plain(range(rows), range(rows), [case.past] * rows, mask=place, masks=masks(rows, vocab))


@lru_cache(1)
def masks(rows: int, vocab: int) -> torch.Tensor:
    """int32 [R, ⌈V / 32⌉]: inside a string nearly all tokens are allowed, between strings few."""
    rng = torch.Generator().manual_seed(2)
    bits = torch.ones((rows, -(-vocab // 32) * 32), dtype=torch.bool)
    bits[1::2] = False
    bits[1::2].scatter_(1, torch.randint(0, vocab, (rows // 2, STRICT_IDS), generator=rng), True)
    return torch.from_numpy(np.packbits(bits.numpy(), axis=1, bitorder="little").view(np.int32))
