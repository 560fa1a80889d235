"""Logprobs as arrays are those of the records, also of requests that the kernels leave to the reference sampler."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, token_for_each
from tailrace.sampling.pipeline import beyond_kernels
from tailrace.sampling.sampler import Pending

V = 120
ASKED = [
    SamplingParams(logprobs=3),
    SamplingParams(top_k=5),
    SamplingParams(normalize_logits=True, logprobs=2, report_entropy=True),
    SamplingParams(logprobs=0, report_entropy=True),
    SamplingParams(normalize_logits=True, logprobs=4, logprobs_mode="processed", top_k=9),
    SamplingParams(logprob_token_ids=(3, 7), logprobs=0, logprobs_mode="processed"),
]


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("alone", [False, True])
@QUIET
def test_they_are_those_of_the_records(backend, alone):
    """alone: the third request by itself, so that nobody else has asked the kernels for anything."""
    assert [beyond_kernels(params) for params in ASKED] == [False, False, True, False, True, True]
    asked = ASKED[2:3] if alone else ASKED
    slots = Slots(len(asked), V)
    for slot, params in enumerate(asked):
        slots.add(slot, params, prompt=[1], key=slot)
    logits = (torch.randn(2 * len(asked), V, generator=torch.Generator().manual_seed(1)) * 2).to(DEVICES[backend])
    each = range(len(asked))
    rows = Rows.drafted(each, [1] * len(asked), [[int(row.argmax())] for row in logits[::2]])
    pending = Sampler(slots, backend).begin(logits, rows)
    early, sampled = pending.logprob_arrays, pending.wait()
    late = sampled.logprob_arrays
    assert early is not None
    for i, params in enumerate(asked):
        if params.logprobs is None:
            continue
        entries = sampled.logprobs[i] or []
        assert len(entries) == int(sampled.num_tokens[i]) > 0
        for arrays in (early,) if late is None else (early, late):
            for j, entry in enumerate(entries):
                top = params.logprobs
                logprobs, ranks = arrays.logprobs()[i, j, : 1 + top].cpu(), arrays.ranks[i, j, : 1 + top].cpu()
                assert logprobs.tolist() == pytest.approx([entry.logprob, *entry.top_logprobs[:top]], nan_ok=True)
                assert ranks.tolist() == [entry.rank, *entry.top_ids[:top]]
                if params.report_entropy:
                    assert entry.entropy is not None
                    assert arrays.numbers[i, j, 1:3].tolist() == pytest.approx([entry.entropy, entry.varentropy])


def test_a_row_without_a_token_gets_its_largest_numbers():
    logits = torch.zeros(4, 9)
    logits[1], logits[3] = math.nan, -math.inf
    logits[1, 5] = 2.0
    found = torch.tensor([[4, -1], [-1, -1], [-1, -1]])
    ids, without = token_for_each(found, logits, [0, 1, 3])
    assert ids.tolist() == [[4, -1], [5, -1], [0, -1]]
    assert without == [1, 2]
    assert found[1, 0] == -1


@pytest.mark.parametrize("backend", DEVICES)
@QUIET
def test_padded_they_have_one_width(backend):
    """Also of a batch with fewer alternatives than the arrays, and where nobody asks; no number is left undefined."""
    asked = [3, None, 0, 1]
    slots = Slots(4, V)
    for slot, count in enumerate(asked):
        slots.add(slot, SamplingParams(logprobs=count), prompt=[1], key=slot)
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(2)).to(DEVICES[backend])
    logits[3] = math.nan  # no token
    pending = Sampler(slots, backend).begin(logits, Rows.plain(range(4), range(4)))
    arrays = pending.logprob_arrays
    assert arrays is not None
    for top in (1, 3, 5):
        shown, values = pending.padded_logprobs(asked, top)
        assert shown.shape == values.shape == (4, 1, 1 + top)
        for i, count in enumerate([3, -1, 0, -1]):
            n = min(count, top) + 1
            assert shown[i, 0].tolist() == [*arrays.ranks[i, 0, :n].tolist(), *[0] * (1 + top - n)]
            assert values[i, 0].tolist() == [*arrays.logprobs()[i, 0, :n].tolist(), *[0.0] * (1 + top - n)]
    nobody = Pending(pending.token_ids, pending.wait).padded_logprobs([None] * 4, 2)
    assert [part.abs().sum() for part in nobody] == [0, 0]
