"""What engines need whose tokens stay on the device, from every backend: the logits that a draw would see
(`Sampler.refine`), and positions that the host does not know (`Rows.position_there`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.reference import compute_distribution
from tailrace.sampling.sampler import BackendName

VOCAB = 301
FIELDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.4, "top_k": 30},
    {"temperature": 0.8, "top_p": 0.8, "min_p": 0.01},
    {"dynatemp_range": 0.5, "smoothing_factor": 0.2},
    {"typical_p": 0.6},
    {"top_n_sigma": 1.2, "xtc_probability": 1.0, "xtc_threshold": 0.02},
    {"tfs_z": 0.9},  # no kernel of a GPU has it
    {"logit_bias": {4: 6.0}, "presence_penalty": 2.0, "top_k": 5},
]


@QUIET
@pytest.mark.parametrize("backend", DEVICES)
def test_rows_are_those_that_are_drawn_from(backend: BackendName) -> None:
    slots, count = Slots(len(FIELDS), VOCAB), len(FIELDS)
    for slot, fields in enumerate(FIELDS):
        params = SamplingParams(**fields, logprobs=0, logprobs_mode="processed")
        slots.add(slot, params, key=slot, prompt=[1, 2], output=[3, 4])
    logits = torch.randn(count + 1, VOCAB, generator=torch.Generator().manual_seed(2)) * 3
    logits[:, 7] = -torch.inf
    logits[0] = -torch.inf  # the row of the first slot has no distribution
    rows = Rows.plain(range(count), [0, *range(2, count + 1)], [9] * count)
    found = Sampler(slots, backend).refine(logits.to(DEVICES[backend]), rows).cpu()
    assert found[0].eq(-torch.inf).all()
    for slot in range(1, count):
        kept = compute_distribution(logits[slot + 1], slots[slot], 9)
        assert torch.equal(found[slot].isfinite().nonzero()[:, 0], kept.ids), FIELDS[slot]
        torch.testing.assert_close(found[slot][kept.ids], kept.logits - kept.logits.max(), rtol=1e-5, atol=1e-5)


@QUIET
@pytest.mark.parametrize("backend", DEVICES)
def test_positions_on_the_device_replace_those_of_the_host(backend: BackendName) -> None:
    slots, count = Slots(len(FIELDS), VOCAB), len(FIELDS)
    for slot, fields in enumerate(FIELDS):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[1, 2])
    logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(3)).to(DEVICES[backend])
    sampler, positions = Sampler(slots, backend), torch.arange(7, 7 + count)
    known = Rows.plain(range(count), range(count), positions.tolist())
    bounds = Rows.plain(range(count), range(count), [50] * count)
    there = replace(bounds, position_there=positions.to(DEVICES[backend]))
    assert sampler(logits, there).tokens() == sampler(logits, known).tokens()
    assert sampler(logits, bounds).tokens() != sampler(logits, known).tokens()
    assert there.of(2).on_host().position.tolist() == [9]
