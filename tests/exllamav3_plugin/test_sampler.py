"""tailrace's sampler in exllamav3's own Job: the tokens are the library's, with filters' masks, and after rewinds."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exllamav3.generator.job import Job
from exllamav3.generator.sampler import CustomSampler

from field_examples import company
from tailrace.integrations.exllamav3.refused_fields import EXLLAMAV3
from tailrace.integrations.exllamav3.sampler import TailraceSampler
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.processors import REGISTERED

V, KNOWN, EOS, MANY = 320, 301, 2, 6
PROMPT = [5, 9, 9, 40, 5, 9]
KNOWN_IDS = SimpleNamespace(actual_vocab_size=KNOWN)  # of the tokenizer


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    """The processor that the example of `processors` names."""
    monkeypatch.setitem(REGISTERED, "mine", lambda row, tokens, x: row.index_fill(0, torch.arange(0, V, 2), -torch.inf))


def logits_of(ids: list[int]) -> torch.Tensor:
    """The model's logits after these ids, half as exllamav3 has them. The places without a token are large."""
    made = torch.randn(V, generator=torch.Generator().manual_seed(hash(tuple(ids)) % 2**31)) * 3
    made[KNOWN:] = 50.0
    return made.half().view(1, 1, V)


def draw_by_job(sampler: Any, prompt: list[int] = PROMPT, mask: torch.Tensor | None = None, **more: Any) -> list[int]:
    """The new ids of exllamav3's Job."""
    job = Job(torch.tensor([prompt]), sampler=sampler, **more)
    job.generator = SimpleNamespace(tokenizer=KNOWN_IDS)
    job.device_logit_mask = mask
    found: list[int] = []
    for _ in range(MANY):
        job.current_device_ids = torch.tensor([prompt + found])
        token = job.receive_logits(logits_of(prompt + found))[0]
        assert (token.shape, token.dtype) == ((1, 1), torch.int64)
        found.append(int(token))
    return found


def draw_by_hand(params: SamplingParams, allowed: torch.Tensor | None = None) -> list[int]:
    """The library's own loop."""
    slots, found = Slots(1, V), []
    slots.add(0, params, prompt=PROMPT, eos_token_ids=[EOS])
    for _ in range(MANY):
        row = logits_of(PROMPT + found).view(1, V).float()
        row[:, KNOWN:] = -torch.inf
        if allowed is not None:
            row[:, ~allowed] = -torch.inf
        [new] = Sampler(slots)(row, Rows.plain([0], [0])).tokens()
        slots.commit([0], [new])
        found += new
    return found


ACTING = [name for name in FIELDS if not EXLLAMAV3.keys() & {name, *company(name)}]


@pytest.mark.parametrize("name", ACTING)
def test_each_field_acts_as_the_library_says(name):
    params = SamplingParams(**{"seed": 7, **company(name)})
    assert draw_by_job(TailraceSampler(params, eos_token_ids=[EOS])) == draw_by_hand(params)


@pytest.mark.parametrize("name", EXLLAMAV3)
def test_each_other_field_is_refused_by_name(name):
    asked = company(name) | ({"logprobs": 0} if name == "logprob_token_ids" else {})
    with pytest.raises(ValueError, match="is refused by exllamav3") as raised:
        TailraceSampler(SamplingParams(**asked))
    assert raised.value.param in asked


def test_an_argument_of_another_type_is_refused_by_name():
    for wrong in ({"top_k": 3}, None):
        with pytest.raises(ValueError, match="params must be"):
            TailraceSampler(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="eos_token_ids must be"):
        TailraceSampler(SamplingParams(), eos_token_ids=EOS)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [KNOWN, 200])
def test_the_masks_of_filters_hold(width):
    params, allowed = SamplingParams(temperature=2.0, seed=3), torch.zeros(V, dtype=torch.bool)
    allowed[5:width:7] = True
    added = torch.where(allowed[:width], 0.0, -torch.inf).half().view(1, 1, -1)
    words = torch.zeros(1, -(-width // 32), dtype=torch.int64)
    for id in allowed.nonzero().flatten().tolist():
        words[0, id // 32] |= 1 << id % 32
    bits = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    expected = draw_by_hand(params, allowed)
    for mask in (added, bits):
        assert draw_by_job(TailraceSampler(params), mask=mask) == expected
    assert expected != draw_by_hand(params)


def test_seeds_of_jobs_and_of_parameters():
    free = SamplingParams(temperature=1.5)
    assert draw_by_job(TailraceSampler(free), seed=1) == draw_by_job(TailraceSampler(free), seed=1)
    assert draw_by_job(TailraceSampler(free), seed=1) != draw_by_job(TailraceSampler(free), seed=2)
    seeded = SamplingParams(temperature=1.5, seed=4)
    assert draw_by_job(TailraceSampler(seeded), seed=1) == draw_by_job(TailraceSampler(seeded), seed=2)


def test_a_rewound_job_and_the_next_job_are_followed():
    params = SamplingParams(temperature=0.8, repetition_penalty=1.5, seed=5)
    sampler = TailraceSampler(params)
    expected = draw_by_job(sampler)
    back = sampler.forward(logits_of(PROMPT + expected[:2]), torch.tensor([PROMPT + expected[:2]]), 0, KNOWN_IDS)
    assert back.item() == expected[2]
    assert draw_by_job(sampler) == expected
    assert draw_by_job(sampler, [7, 8]) == draw_by_job(TailraceSampler(params), [7, 8])


def test_it_is_called_as_exllamav3s_own():
    ours, theirs = (list(inspect.signature(one.forward).parameters) for one in (TailraceSampler, CustomSampler))
    assert ours == theirs
