"""The same path with the GPU's kernels, in Triton's interpreter: nothing waits for the device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from crowd import ROWS, VOCAB, Crowd
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.sampler import Sampler

from tailrace.integrations.vllm import requests
from tailrace.integrations.vllm.requests import BatchFollower
from tailrace.sampling.backends.gpu import GPUBackend
from tailrace.sampling.sampler import Pending

FIELDS: list[dict[str, Any]] = [
    {"seed": 1, "top_p": 0.8, "logprobs": 3},
    {"seed": 2, "presence_penalty": 1.0, "top_k": 9},
    {"temperature": 0.0, "logprobs": 0},
    {"seed": 3, "min_p": 0.05},
]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(pending: Pending) -> None:
        raise AssertionError("a step has waited for the device")

    monkeypatch.setattr(requests, "Sampler", functools.partial(requests.Sampler, backend="gpu"))
    monkeypatch.setattr(Pending, "wait", wait)


def steps(count: int) -> list[Any]:
    crowd = Crowd(4)
    for fields in FIELDS:
        crowd.add(SamplingParams(**fields), prompt=[1, 2, 3])
    found: list[Any] = []
    for _ in range(count):
        crowd.batch.condense()
        crowd.batch.refresh_metadata()
        out = Sampler()(crowd.logits(), crowd.metadata)
        found.append(out)
        for name, token in zip(crowd.order(), out.sampled_token_ids[:, 0].tolist(), strict=True):
            crowd.live[name].output_token_ids.append(token)
    return found


def test_tokens_and_logprobs_are_those_of_the_cpu(request: pytest.FixtureRequest) -> None:
    wanted = steps(3)
    request.getfixturevalue("on_a_gpu")
    for one, other in zip(steps(3), wanted, strict=True):
        assert one.sampled_token_ids.tolist() == other.sampled_token_ids.tolist()
        mine, theirs = one.logprobs_tensors, other.logprobs_tensors
        assert mine.logprob_token_ids.tolist() == theirs.logprob_token_ids.tolist()
        assert mine.selected_token_ranks.tolist() == theirs.selected_token_ranks.tolist()
        torch.testing.assert_close(mine.logprobs, theirs.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_a_gpu")
def test_workspace_is_there_before_vllm_measures_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's `_dummy_sampler_run` draws for no requests, without logits processors."""
    crowd = Crowd(5)
    follower = next(one for one in crowd.metadata.logitsprocs.argmax_invariant if isinstance(one, BatchFollower))
    monkeypatch.setattr(BatchFollower, "newest", follower)
    monkeypatch.setattr("tailrace.sampling.backends.gpu.compile_all", lambda *_: None)
    crowd.add(SamplingParams(temperature=0.0))
    crowd.settle()
    crowd.metadata.logitsprocs = LogitsProcessors()
    backend = follower.sampler.backend_for(torch.device("cpu"))
    assert isinstance(backend, GPUBackend)
    space = backend.space
    assert space.work is None
    Sampler()(torch.zeros(1, VOCAB), crowd.metadata)
    assert space.rows >= ROWS
    held = space.work
    Sampler()(torch.zeros(1, VOCAB), crowd.metadata)
    assert space.work is held
