"""Logprobs of tokens that a request names, instead of the likeliest."""

from __future__ import annotations

import math

import pytest
import torch

from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots

NAMED = (7, 0, 39)


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.5}, {"presence_penalty": 1.0}]
)
def test_logprobs_of_named_tokens(fields, mode):
    """The kernels' and the reference's, plain rows and drafts, against log-softmax."""
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(3)) * 3
    logits[0, 7] = -math.inf
    told = {}
    for backend in ("cpu", "reference"):
        slots = Slots(2, 40)
        for i in range(2):
            given = SamplingParams(**fields, logprobs=0, logprobs_mode=mode, logprob_token_ids=NAMED)
            slots.add(i, given, key=5 + i, prompt=[1, 2])
        sampler = Sampler(slots, backend)
        plain = sampler(logits, Rows.plain([0, 1], [2, 0], [2, 2]))
        drafted = sampler(logits, Rows.drafted([0, 1], [2, 2], [[5], [6]], ["exact", "exact"], source=[0, 2]))
        told[backend] = [*plain.logprobs, *drafted.logprobs]
        assert [entry.top_ids for entries in told[backend] for entry in entries] == [[*NAMED]] * sum(
            map(len, told[backend])
        )
        if mode == "raw":
            of = [entries[0].top_logprobs for entries in plain.logprobs]
            wanted = logits.double().log_softmax(1)[[2, 0]][:, list(NAMED)]
            assert torch.allclose(torch.tensor(of, dtype=torch.float64), wanted, atol=1e-5)
    for ours, theirs in zip(told["cpu"], told["reference"], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-5)
            assert (one.logprob, one.rank) == (pytest.approx(other.logprob, abs=1e-5), other.rank)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logprob_token_ids": (1,)}, "without logprobs"),
        ({"logprob_token_ids": (1,), "logprobs": 2}, "takes the place"),
        ({"logprob_token_ids": tuple(range(129)), "logprobs": 0}, "at most 128"),
        ({"logprob_token_ids": (-1,), "logprobs": 0}, "token id -1"),
        ({"logprob_token_ids": (40,), "logprobs": 0}, "token id 40"),
    ],
)
def test_named_tokens_that_cannot_be_had(fields, words):
    with pytest.raises(ParameterError, match=words) as caught:
        Slots(1, 40).add(0, SamplingParams(**fields), key=1, prompt=[1])
    assert caught.value.param == "logprob_token_ids"


def test_a_token_that_is_named_twice_is_listed_once():
    """In the order of the first mentions."""
    params = SamplingParams(logprobs=0, logprob_token_ids=[7, 3, 7, 3, 5])
    assert params.logprob_token_ids == (7, 3, 5)
    assert params.alternatives == 3
