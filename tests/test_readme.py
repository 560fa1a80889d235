"""The README's library example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from tailrace.sampling import Rows, Sampler, SamplingParams, Slots

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_library_example_runs():
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "tailrace.sampling" in block
    )
    scope: dict = {}
    exec(code, scope)
    assert scope["sampled"].token_ids.shape == (2, 1)
    assert scope["sampled"].token_ids[1, 0] == scope["logits"][1].argmax()
    assert len(scope["sampled"].logprobs[1][0].top_ids) == 5


def test_numpy_logits_will_do():
    logits = np.random.default_rng(1).standard_normal((1, 500), dtype=np.float32)
    slots = Slots(1, 500)
    slots.add(0, SamplingParams(temperature=0.0), key=1, prompt=[1])
    sampled = Sampler(slots)(torch.from_numpy(logits), Rows.plain([0], [0], [1]))
    assert int(sampled.token_ids[0, 0]) == int(logits.argmax())
