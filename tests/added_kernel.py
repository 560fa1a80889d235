"""Print as JSON which ids each backend keeps by `logit_gap`, in a package that has the GPU's branch of
docs/add/method.md. tests/test_method_guide.py runs this file; without a GPU the branch runs in Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import tailrace
from tailrace.kernels.program import STAGES
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.backends.device_slots import DeviceSlots

VOCAB = 600
DEVICES = {"reference": "cpu", "gpu": "cuda" if torch.cuda.is_available() else "cpu"}
# gaps on both sides of the depth of 4 temperatures that is collected first
CASES: list[dict[str, Any]] = [
    {"logit_gap": 0.5},
    {"logit_gap": 3.9},
    {"logit_gap": 7.0},
    {"logit_gap": 40.0},
    {"logit_gap": 6.0, "temperature": 0.5},
    {"logit_gap": 9.0, "temperature": 2.0},
    {"logit_gap": 9.0, "top_p": 0.5},
    {"logit_gap": 7.0, "min_p": 1e-4, "sampler_order": ("logit_gap", "min_p")},
]


def keep(backend: str, fields: dict[str, Any]) -> list[int]:
    """Return the ids that survive in a row whose logits spread over 12."""
    row = torch.linspace(0.0, -12.0, VOCAB)[torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))]
    slots = Slots(1, VOCAB)
    slots.add(0, SamplingParams(return_sampling_mask=True, **fields), key=7, prompt=[1])
    out = Sampler(slots, backend)(row[None].to(DEVICES[backend]), Rows.plain([0], [0], [1]))
    assert out.sampling_mask is not None
    [kept] = out.sampling_mask.parts()
    return kept.tolist()


def refuse_fallback(*_: Any) -> list[int]:
    """Stand in for the choice of rows that another backend draws: there are none."""
    return []


if __name__ == "__main__":
    assert STAGES["logit_gap"].on_gpu  # pyright: ignore[reportArgumentType]
    DeviceSlots.falling_back = refuse_fallback
    kept = {backend: [keep(backend, fields) for fields in CASES] for backend in DEVICES}
    json.dump({"package": tailrace.__file__, **kept}, sys.stdout)
