"""Beside logits processors of somebody else's tailrace samples all requests, and all of their fields act."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from crowd import CONFIG, THEIRS, VOCAB, Crowd
from custom import Adding, Cutting
from test_sampler import edits
from vllm import SamplingParams
from vllm.v1.sample.sampler import Sampler

from tailrace.integrations.vllm import custom_processors, draws
from tailrace.integrations.vllm.fallbacks import fallbacks

KINDS: list[dict[str, Any]] = [
    {"seed": 1, "temperature": 0.8, "extra_args": {"dry_multiplier": 0.8, "top_n_sigma": 2.0}},
    {"seed": 2, "temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.2, "logprobs": 2},
    {"temperature": 0.0, "extra_args": {"no_repeat_ngram_size": 2}},
    {"seed": 3, "extra_args": {"mirostat": 2, "mirostat_tau": 3.0}},
]


def load(crowd: Crowd, kind: type[Adding]) -> Adding:
    """The processor, loaded beside vLLM's own."""
    processor = kind(CONFIG, torch.device("cpu"), False)
    found = crowd.batch.logitsprocs
    (found.argmax_invariant if processor.is_argmax_invariant() else found.non_argmax_invariant).append(processor)
    return processor


def draw(kind: type[Adding] | None, favoured: dict[int, int], steps: int = 12) -> tuple[list[list[int]], Any]:
    """The tokens of KINDS, and the processor. favoured: what some of them ask of it."""
    crowd = Crowd(11)
    processor = None if kind is None else load(crowd, kind)
    for index, fields in enumerate(KINDS):
        extra = {"favoured": favoured[index]} if index in favoured else {}
        crowd.add(SamplingParams(**{**fields, "extra_args": {**fields.get("extra_args", {}), **extra}}), prompt=[1, 2])
    crowd.batch.refresh_metadata()
    noise = torch.Generator().manual_seed(4)
    for _ in range(steps):
        crowd.batch.refresh_metadata()
        logits = torch.randn(len(KINDS), VOCAB, generator=noise) * 2
        ids = Sampler()(logits, crowd.metadata).sampled_token_ids[:, 0].tolist()
        for state, token in zip(crowd.live.values(), ids, strict=True):
            state.output_token_ids.append(token)
    return [state.output_token_ids for state in crowd.live.values()], processor


@pytest.mark.parametrize("kind", [Adding, Cutting])
def test_an_idle_one_changes_no_token(kind: type[Adding]) -> None:
    found, processor = draw(kind, {})
    assert found == draw(None, {})[0]
    assert processor.calls == 12
    assert not fallbacks


@pytest.mark.parametrize(("kind", "asked"), [(Adding, 250), (Cutting, 1)])
def test_an_active_one_changes_its_own_request_alone(kind: type[Adding], asked: int) -> None:
    bare, _ = draw(None, {})
    found, processor = draw(kind, {1: asked, 3: asked})
    assert processor.calls == 12
    assert [found[0], found[2]] == [bare[0], bare[2]]
    assert found[1] != bare[1]
    assert found[3] != bare[3]
    if kind is Adding:
        assert found[1].count(250) > bare[1].count(250)
    assert not fallbacks


def test_what_it_removes_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the largest two of each row, which the test fails without."""

    def count_others(steps: int) -> int:
        crowd = Crowd(12)
        load(crowd, Cutting)
        crowd.add(SamplingParams(temperature=1.5, seed=9, extra_args={"favoured": 2, "top_n_sigma": 8.0}))
        crowd.settle()
        row = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
        best, others = set(row[0].topk(2).indices.tolist()), 0
        for _ in range(steps):
            [token] = Sampler()(row.clone(), crowd.metadata).sampled_token_ids[:, 0].tolist()
            others += token not in best
            next(iter(crowd.live.values())).output_token_ids.append(token)
        return others

    assert count_others(40) == 0
    monkeypatch.setattr(draws, "change_logits", lambda logits, metadata: draws.Changed(logits, metadata, None))
    assert count_others(40) > 20


@pytest.mark.parametrize("seed", range(6))
def test_greedy_rows_with_edits_are_vllms_own(seed: int) -> None:
    """With the logprobs of the model's own logits, and beside a request that vLLM serves."""
    crowd = Crowd(seed)
    load(crowd, Adding)
    for index in range(6):
        extra = {"favoured": crowd.random.randrange(VOCAB)} if index % 2 else {}
        crowd.add(SamplingParams(temperature=0.0, logprobs=3, extra_args=extra or None, **edits(crowd.random)))
    for _ in range(6):
        crowd.settle()
        logits, sampler = crowd.logits(), Sampler()
        wanted = THEIRS(sampler, logits.clone(), crowd.metadata)
        found = sampler(logits.clone(), crowd.metadata)
        assert found.sampled_token_ids.tolist() == wanted.sampled_token_ids.tolist()
        mine, theirs = found.logprobs_tensors, wanted.logprobs_tensors
        assert mine.logprob_token_ids.tolist() == theirs.logprob_token_ids.tolist()
        torch.testing.assert_close(mine.logprobs, theirs.logprobs)
        assert mine.selected_token_ranks.tolist() == theirs.selected_token_ranks.tolist()
        crowd.keep(dict(zip(crowd.order(), found.sampled_token_ids[:, 0].tolist(), strict=True)))
    assert not fallbacks


def test_a_request_of_vllms_own_sampler_gets_the_change_once() -> None:
    crowd = Crowd(2)
    processor = load(crowd, Adding)
    crowd.add(SamplingParams(temperature=0.0, logprobs=-1, extra_args={"favoured": 8}), prompt=[1])
    crowd.add(SamplingParams(temperature=0.0, extra_args={"favoured": 8}), prompt=[1])
    crowd.settle()
    logits = torch.zeros(2, VOCAB)
    logits[:, 3] = 4.0
    logits[:, 5] = 9.9
    found = Sampler()(logits, crowd.metadata).sampled_token_ids[:, 0].tolist()
    assert found == [5, 5]  # 8 would be drawn if 5 were added twice
    assert processor.calls == 1
    assert set(fallbacks) == {"logprobs of the whole vocabulary"}
    assert custom_processors.list_active([processor]) == [processor]
