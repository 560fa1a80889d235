"""Sampling as the end of the output projection: the tokens that would be drawn from the logits if they were written."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from tailrace import kernels
from tailrace.kernels.dispatch import find
from tailrace.kernels.status import EMPTY, INF, NAN, OK
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots


def inputs(rows: int, vocab: int, width: int, dtype: torch.dtype, seed: int = 1):
    """Small integers: every sum is exact, in whatever order."""
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randint(-2, 3, (rows, width), generator=rng).to(dtype)
    weight = (torch.randint(-2, 3, (vocab, width), generator=rng) / 8).to(dtype)
    key = torch.randint(0, 2**62, (rows,), generator=rng)
    position = torch.randint(0, 9999, (rows,), generator=rng)
    temperature = torch.tensor([0.0, 0.3, 1.0, 1.7, 20.0] * rows, dtype=torch.float64)[:rows]
    return hidden, weight, key, position, temperature


def drawn(backend: str, *given: torch.Tensor) -> tuple[list[int], list[int]]:
    ids, status = find("sample_head", backend)(*(part.to(DEVICES[backend]) for part in given))
    return ids.tolist(), status.tolist()


@QUIET
@pytest.mark.parametrize(
    ("rows", "vocab", "width", "dtype"),
    [
        (5, 300, 40, torch.float32),
        (17, 129, 64, torch.bfloat16),
        (1, 1, 7, torch.float32),
        (3, 1025, 130, torch.float16),
    ],
)
def test_the_same_tokens_as_from_written_logits(rows, vocab, width, dtype):
    given = inputs(rows, vocab, width, dtype)
    assert drawn("gpu", *given) == drawn("reference", *given)


@QUIET
@pytest.mark.parametrize("backend", ["reference", "gpu"])
def test_the_same_tokens_as_the_sampler(backend):
    """Its x = (l − max) / T is rounded once more: no score here is so near another."""
    hidden, weight, key, position, temperature = inputs(10, 257, 32, torch.float32, seed=3)
    slots = Slots(10, 257)
    for slot in range(10):
        slots.add(slot, SamplingParams(temperature=float(temperature[slot])), key=int(key[slot]), prompt=[1])
    rows = Rows.plain(range(10), range(10), position.tolist())
    expected = Sampler(slots)(hidden @ weight.T, rows).token_ids[:, 0].tolist()
    assert drawn(backend, hidden, weight, key, position, temperature)[0] == expected
    assert drawn(backend, hidden, weight, key, position + 1, temperature)[0] != expected  # the planted fault


@QUIET
@pytest.mark.parametrize("backend", ["reference", "gpu"])
def test_rows_that_have_no_distribution(backend):
    hidden, weight, key, position, temperature = inputs(4, 200, 16, torch.float32)
    hidden[0, 3], hidden[1], weight[:, 5] = math.nan, 0.0, weight[:, 5].abs() + 1
    hidden[1, 5], hidden[2, 5] = -math.inf, math.inf
    assert drawn(backend, hidden, weight, key, position, temperature)[1] == [NAN, EMPTY, INF, OK]


def test_the_device_chooses():
    given = inputs(3, 50, 8, torch.float32)
    assert kernels.sample_head(*given)[0].tolist() == drawn("reference", *given)[0]
