"""One token at fixed logits: the same kept set and the same probabilities as transformers' processors."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tailrace.params import SamplingParams
from tailrace.sampling import Slots
from tailrace.sampling.reference import distribution

V = 5000
PROMPT = [3, 3, 99, 4000, 7]
CASES = {
    "temperature": ({"temperature": 0.6}, lambda: [TemperatureLogitsWarper(0.6)]),
    "top-k": ({"top_k": 50}, lambda: [TopKLogitsWarper(50)]),
    "top-p": ({"top_p": 0.9}, lambda: [TopPLogitsWarper(0.9)]),
    "top-p small": ({"top_p": 0.1}, lambda: [TopPLogitsWarper(0.1)]),
    "min-p": ({"min_p": 0.05}, lambda: [MinPLogitsWarper(0.05)]),
    "repetition penalty": ({"repetition_penalty": 1.3}, lambda: [RepetitionPenaltyLogitsProcessor(1.3)]),
    "all, in our order": (
        {"temperature": 0.8, "min_p": 0.01, "top_k": 100, "top_p": 0.95, "repetition_penalty": 1.1},
        lambda: [
            RepetitionPenaltyLogitsProcessor(1.1), TemperatureLogitsWarper(0.8), MinPLogitsWarper(0.01),
            TopKLogitsWarper(100), TopPLogitsWarper(0.95),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_kept_set_and_probabilities(name, scale):
    fields, processors = CASES[name]
    logits = torch.randn(V, generator=torch.Generator().manual_seed(5)) * scale
    theirs = logits[None].clone()
    for processor in processors():
        theirs = processor(torch.tensor([PROMPT]), theirs)
    expected = theirs.softmax(-1)[0]
    slots = Slots(1, V)
    slots.join(0, SamplingParams(**fields), key=1, prompt=PROMPT)
    ours = distribution(logits, slots[0])
    assert ours.ids.tolist() == theirs[0].isfinite().nonzero().squeeze(1).tolist()
    torch.testing.assert_close(ours.probabilities().float(), expected[ours.ids], atol=1e-5, rtol=1e-4)
