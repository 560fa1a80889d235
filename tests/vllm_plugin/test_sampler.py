"""tailrace in the place of vLLM's sampler: random crowds whose rows join, leave and move."""

from __future__ import annotations

import cProfile
import pstats
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from crowd import CONFIG, ROWS, THEIRS, VOCAB, Crowd
from packaging.version import Version
from release import RELEASE
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.sampler import Sampler

from tailrace.integrations.vllm.fallbacks import fallbacks
from tailrace.integrations.vllm.requests import BatchFollower

# vLLM 0.30's `swap_states` gives two requests that change places the same allowed_token_ids, one's
MASKS_MOVE = Version("0.31") <= RELEASE


def edits(rng: random.Random) -> dict[str, Any]:
    """Random fields that change logits."""
    found: dict[str, Any] = {}
    if rng.random() < 0.5:
        found |= {"presence_penalty": rng.uniform(-1, 2), "frequency_penalty": rng.uniform(-1, 2)}
    if rng.random() < 0.4:
        found["repetition_penalty"] = rng.uniform(0.8, 1.5)
    if rng.random() < 0.4:
        found["logit_bias"] = {rng.randrange(VOCAB): rng.uniform(-5, 5) for _ in range(3)}
    if MASKS_MOVE and rng.random() < 0.3:
        found["allowed_token_ids"] = sorted(rng.sample(range(VOCAB), 60))
    if rng.random() < 0.3:
        found |= {"min_tokens": 4, "max_tokens": 100, "stop_token_ids": rng.sample(range(VOCAB), 20)}
    return found


def with_bad_words(params: SamplingParams, rng: random.Random) -> SamplingParams:
    params._bad_words_token_ids = [[rng.randrange(VOCAB)] for _ in range(5)]
    return params


@pytest.mark.parametrize("seed", range(12))
def test_greedy_rows_with_all_edits_are_vllms_own(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(40):
        left = [crowd.remove(name) for name in list(crowd.live) if crowd.random.random() < 0.1]
        for state in left:
            if crowd.random.random() < 0.3:  # preempted, and back at once in another row
                crowd.resume(state)
        while len(crowd.live) < ROWS and crowd.random.random() < 0.6:
            crowd.add(with_bad_words(SamplingParams(temperature=0.0, **edits(crowd.random)), crowd.random))
        if not crowd.live:
            continue
        crowd.settle()
        logits = crowd.logits()
        sampler = Sampler()
        wanted = THEIRS(sampler, logits.clone(), crowd.metadata).sampled_token_ids
        found = sampler(logits.clone(), crowd.metadata).sampled_token_ids
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted.tolist()
        crowd.keep(dict(zip(crowd.order(), found[:, 0].tolist(), strict=True)))
    assert not fallbacks, fallbacks


def outputs(crowd: Crowd, watched: dict[str, list[torch.Tensor]], steps: int) -> dict[str, list[int]]:
    """The tokens of the watched requests, whose logits are given; strangers come and go."""
    found: dict[str, list[int]] = {name: [] for name in watched}
    for _ in range(steps * 3):
        strangers = [name for name in crowd.live if name not in watched]
        for name in strangers:
            if crowd.random.random() < 0.3:
                crowd.remove(name)
        while len(crowd.live) < ROWS and crowd.random.random() < 0.5:
            crowd.add(SamplingParams(temperature=1.0, **edits(crowd.random)))
        crowd.settle()
        logits, order = crowd.logits(), crowd.order()
        for row, name in enumerate(order):
            if name in watched and len(found[name]) < steps:
                logits[row] = watched[name][len(crowd.live[name].output_token_ids)]
        ids = Sampler()(logits, crowd.metadata).sampled_token_ids[:, 0].tolist()
        for name, token in zip(order, ids, strict=True):
            if name not in watched:
                crowd.live[name].output_token_ids.append(token)
            elif len(found[name]) < steps:
                found[name].append(token)
                crowd.live[name].output_token_ids.append(token)
    return found


def test_a_seeded_request_is_the_same_alone_and_in_a_crowd() -> None:
    steps, rows = 20, [list(torch.randn(21, VOCAB, generator=torch.Generator().manual_seed(i))) for i in range(3)]
    kinds: list[dict[str, Any]] = [
        {"top_p": 0.8},
        {"top_k": 20, "presence_penalty": 1.0, "repetition_penalty": 1.3},
        {"min_p": 0.05, "extra_args": {"mirostat": 2, "mirostat_tau": 3.0}},
    ]
    kinds[2].pop("min_p")
    alone: dict[str, list[int]] = {}
    for i, kind in enumerate(kinds):
        single = Crowd(100 + i)
        name = single.add(SamplingParams(temperature=1.0, seed=i, **kind), prompt=[1, 2, 3], name=f"w{i}")
        for row in rows[i][:steps]:
            single.batch.condense()
            single.batch.refresh_metadata()
            token = int(Sampler()(row[None], single.metadata).sampled_token_ids)
            single.live[name].output_token_ids.append(token)
        alone[name] = single.live[name].output_token_ids
    crowd = Crowd(7)
    for i, kind in enumerate(kinds):
        crowd.add(SamplingParams(temperature=1.0, seed=i, **kind), prompt=[1, 2, 3], name=f"w{i}")
    assert outputs(crowd, {f"w{i}": rows[i] for i in range(3)}, steps) == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 3


def test_frequencies_are_those_of_the_distribution() -> None:
    """40,000 draws at p = .6 / .34 / .06 after temperature; the G-test's threshold is that of 1e-9 at two degrees."""
    crowd, wanted = Crowd(3), torch.tensor([0.6, 0.34, 0.06])
    for _ in range(ROWS):
        crowd.add(SamplingParams(temperature=0.5, top_k=3))
    crowd.settle()
    row = torch.full((VOCAB,), -50.0)
    row[[5, 9, 2]] = wanted.log() * 0.5
    counts = torch.zeros(VOCAB)
    for _ in range(5000):
        ids = Sampler()(row.repeat(ROWS, 1), crowd.metadata).sampled_token_ids[:, 0]
        counts.scatter_add_(0, ids.long(), torch.ones(ROWS))
        crowd.keep(dict(zip(crowd.order(), ids.tolist(), strict=True)))
        for state in crowd.live.values():  # positions go on; vLLM's list is ours to cut here
            state.output_token_ids[:] = state.output_token_ids
    seen = counts[[5, 9, 2]]
    assert counts.sum() == seen.sum()
    g = 2 * float((seen * (seen / (wanted * seen.sum())).log()).sum())
    assert g < 41.4


def test_logprobs_are_vllms() -> None:
    crowd = Crowd(5)
    for count in (None, 0, 3, 5):
        crowd.add(SamplingParams(temperature=0.0, logprobs=count, **edits(crowd.random)))
    crowd.add(SamplingParams(temperature=0.0, logprobs=2, extra_args={"exponential_decay_length_penalty": [1, 1.1]}))
    crowd.settle()
    logits = crowd.logits()
    sampler = Sampler()
    wanted = THEIRS(sampler, logits.clone(), crowd.metadata)
    found = sampler(logits.clone(), crowd.metadata)
    shown = found.logprobs_tensors.logprob_token_ids  # vLLM looks all of them up, also what nobody asked for
    assert 0 <= int(shown.min()) <= int(shown.max()) < VOCAB
    for row, name in enumerate(crowd.order()):
        if (count := crowd.live[name].sampling_params.logprobs) is None:
            continue
        mine, theirs = found.logprobs_tensors, wanted.logprobs_tensors
        assert mine.logprob_token_ids[row, : count + 1].tolist() == theirs.logprob_token_ids[row, : count + 1].tolist()
        torch.testing.assert_close(mine.logprobs[row, : count + 1], theirs.logprobs[row, : count + 1])
        assert int(mine.selected_token_ranks[row]) == int(theirs.selected_token_ranks[row])


def test_a_row_without_any_token_gets_one_and_its_neighbours_do_not_notice() -> None:
    crowd = Crowd(1)
    for _ in range(3):
        crowd.add(SamplingParams(temperature=0.0))
    crowd.settle()
    logits = crowd.logits()
    wanted = logits.argmax(-1).tolist()
    logits[1] = float("nan")
    found = Sampler()(logits, crowd.metadata).sampled_token_ids[:, 0].tolist()
    assert found[::2] == wanted[::2]
    assert 0 <= found[1] < VOCAB
    assert fallbacks.popitem()[0].startswith("a row of logits without any token")


def test_what_tailrace_lacks_is_served_by_vllm_beside_its_own_rows() -> None:
    crowd = Crowd(2)
    crowd.add(SamplingParams(temperature=0.0))
    crowd.add(SamplingParams(temperature=0.0, logprobs=-1))
    crowd.settle()
    logits = crowd.logits()
    found = Sampler()(logits.clone(), crowd.metadata)
    assert found.sampled_token_ids[:, 0].tolist() == logits.argmax(-1).tolist()
    assert fallbacks.pop("logprobs of the whole vocabulary") == 1


def test_own_fields_are_checked_where_vllm_checks_its_own() -> None:
    SamplingParams(extra_args={"top_n_sigma": 1.5, "somebody_elses": "field"})
    for wrong, message in (({"xtc_probability": 2}, "xtc_probability"), ({"dry_multiplier": "much"}, "dry_multiplier")):
        with pytest.raises(VLLMValidationError, match=message):
            SamplingParams(extra_args=wrong)


def test_a_step_of_plain_greedy_requests_makes_few_calls() -> None:
    """The largest logits, by one kernel, whatever the number of requests; a request with an edit ends that."""

    def count_calls(fields: dict[str, Any], rows: int) -> int:
        crowd = Crowd(3)
        for _ in range(rows):
            crowd.add(SamplingParams(temperature=0.0, **fields))
        crowd.batch.refresh_metadata()
        sampler, logits = Sampler(), crowd.logits()
        assert sampler(logits, crowd.metadata).sampled_token_ids.shape == (rows, 1)
        profile = cProfile.Profile()
        profile.enable()
        found = sampler(logits, crowd.metadata)
        profile.disable()
        if not fields:
            assert found.sampled_token_ids[:, 0].tolist() == logits.argmax(-1).tolist()
        return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]

    assert count_calls({}, 8) == count_calls({}, 2) < 90
    assert count_calls({"presence_penalty": 0.5}, 8) > 2 * count_calls({}, 8)


def test_vllm_keeps_the_output_up_to_date_for_draws_that_read_it() -> None:
    """With asynchronous scheduling it does so for the lists of its metadata alone."""
    for fields, needed in (
        ({"top_p": 0.9}, False),
        ({"extra_args": {"top_n_sigma": 1.5}}, False),
        ({"extra_args": {"dry_multiplier": 1.0}}, True),
        ({"extra_args": {"mirostat": 2}}, True),
        ({"extra_args": {"forced_token_ids": [3]}}, True),
        ({"min_tokens": 2}, True),
    ):
        crowd = Crowd(3)
        name = crowd.add(SamplingParams(**fields))
        crowd.settle()
        assert bool(crowd.metadata.output_token_ids) == needed, fields
        crowd.remove(name)
        crowd.add(SamplingParams())
        crowd.settle()
        assert not crowd.metadata.output_token_ids


def test_logprobs_of_logits_are_vllms_own_beside_fields_of_tailrace() -> None:
    """--logprobs-mode raw_logits: vLLM draws for the request that asks for them, and no other."""
    model = SimpleNamespace(**{**vars(CONFIG.model_config), "logprobs_mode": "raw_logits"})
    crowd = Crowd(4, SimpleNamespace(**{**vars(CONFIG), "model_config": model}))
    crowd.add(SamplingParams(temperature=0.0, logprobs=2), prompt=[1])
    crowd.add(SamplingParams(temperature=0.0, extra_args={"forced_token_ids": [9]}), prompt=[1])
    crowd.batch.refresh_metadata()
    logits = crowd.logits()
    found = Sampler("raw_logits")(logits.clone(), crowd.metadata)
    assert found.sampled_token_ids[:, 0].tolist() == [int(logits[0].argmax()), 9]
    torch.testing.assert_close(found.logprobs_tensors.logprobs[0, 1:3], logits[0].topk(2).values)
    assert fallbacks.pop("logprobs_mode raw_logits") == 1


def test_a_prompt_of_embeddings_keeps_tailraces_fields() -> None:
    crowd = Crowd(4)
    crowd.add(SamplingParams(temperature=0.0, extra_args={"forced_token_ids": [9]}), prompt=[1])
    crowd.settle()
    follower = next(one for one in crowd.metadata.logitsprocs.argmax_invariant if isinstance(one, BatchFollower))
    follower.rows[0].prompt = None
    assert Sampler()(crowd.logits(), crowd.metadata).sampled_token_ids.tolist() == [[9]]
    assert not fallbacks
