"""tailrace inside Aphrodite's own batch and Sampler, on a CPU without its kernels."""

from __future__ import annotations

import math
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from aphrodite import SamplingParams
from aphrodite.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from aphrodite.v1.sample.sampler import Sampler
from aphrodite.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from tailrace.integrations.aphrodite import sampler as ours
from tailrace.integrations.aphrodite.translate import translate_params
from tailrace.sampling import Slots
from tailrace.sampling.reference import compute_distribution

VOCAB, ROWS, CPU = 300, 8, torch.device("cpu")
THEIRS = Sampler.forward.theirs
CONFIG: Any = SimpleNamespace(
    scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
    model_config=SimpleNamespace(
        logprobs_mode="raw_logprobs", seed=0, runner_type="generate", get_vocab_size=lambda: VOCAB
    ),
    parallel_config=SimpleNamespace(data_parallel_rank=0),
    instance_id="test",
)


class Batch:
    """Aphrodite's batch with requests, driven as its runner drives it."""

    def __init__(self) -> None:
        kinds = (*BUILTIN_LOGITS_PROCESSORS, ours.AphroditeFollower)
        self.live: dict[str, CachedRequestState] = {}
        self.batch = InputBatch(
            max_num_reqs=ROWS,
            max_model_len=512,
            max_num_batched_tokens=512,
            device=CPU,
            vocab_size=VOCAB,
            block_sizes=[16],
            kernel_block_sizes=[16],
            max_num_blocks_per_req=[32],
            logitsprocs=LogitsProcessors([kind(CONFIG, CPU, False) for kind in kinds]),
        )

    def add(self, name: str, params: SamplingParams, prompt: list[int]) -> None:
        state = CachedRequestState(
            req_id=name,
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=params,
            generator=None,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=[],
        )
        self.live[name] = state
        self.batch.add_request(state)

    def remove(self, name: str) -> None:
        self.batch.remove_request(name)
        del self.live[name]

    def step(self, logits: dict[str, torch.Tensor], forward: Any = None) -> tuple[dict[str, int], Any]:
        """Draw a token of each request, and keep it."""
        self.batch.condense()
        self.batch.refresh_metadata()
        names = list(self.batch.req_ids[: len(self.live)])
        rows = torch.stack([logits[name] for name in names])
        output = (forward or Sampler.forward)(Sampler(), rows, self.batch.sampling_metadata)
        tokens = dict(zip(names, output.sampled_token_ids.flatten().tolist(), strict=True))
        for name, token in tokens.items():
            self.live[name].output_token_ids.append(token)
        return tokens, output


def logits_of(seed: int, step: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(1000 * seed + step)) * 3


GREEDY = [
    {},
    {"repetition_penalty": 1.4, "presence_penalty": 0.5},
    {"frequency_penalty": 1.5},
    {"logit_bias": {9: 40.0}},
    {"allowed_token_ids": [4, 5, 6, 7]},
    {"no_repeat_ngram_size": 2},
]


def test_greedy_tokens_and_logprobs_are_aphrodites_own():
    pair = Batch(), Batch()
    for row, fields in enumerate(GREEDY):
        for batch in pair:
            batch.add(f"r{row}", SamplingParams(temperature=0.0, logprobs=3, **fields), [5, 9, 9, row])
    for step in range(6):
        logits = {f"r{row}": logits_of(row, step) for row in range(len(GREEDY))}
        (mine, found), (theirs, expected) = pair[0].step(logits), pair[1].step(logits, THEIRS)
        assert mine == theirs
        assert found.logprobs_tensors.logprob_token_ids[:, :4].tolist() == (
            expected.logprobs_tensors.logprob_token_ids.tolist()
        )
        assert torch.allclose(found.logprobs_tensors.logprobs, expected.logprobs_tensors.logprobs, atol=1e-5)
        assert found.logprobs_tensors.selected_token_ranks.tolist() == (
            expected.logprobs_tensors.selected_token_ranks.tolist()
        )


SEEDED = [
    {"temperature": 1.2, "min_p": 0.02},
    {"top_k": 30, "dry_multiplier": 0.8, "dry_sequence_breaker_ids": [3]},
    {"mirostat_mode": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2},
    {"xtc_probability": 0.5, "nsigma": 2.0},
    {"extra_args": {"min_k": 1, "report": 1}},
    {"extra_args": {"top_h": 0.5}, "temperature_last": True},
    {"extra_args": {"sequence_bias": "[[[7], 4.0]]", "watermark": '{"kind": "kgw", "key": 5, "delta": 4.0}'}},
]


def test_a_seeded_request_is_the_same_alone_and_in_a_crowd():
    asked = [SamplingParams(seed=row, **fields) for row, fields in enumerate(SEEDED)]
    alone = []
    for row, params in enumerate(asked):
        batch = Batch()
        batch.add("one", params, [5, 9, 9])
        alone.append([batch.step({"one": logits_of(row, step)})[0]["one"] for step in range(8)])
    crowd, choose = Batch(), random.Random(1)
    found: list[list[int]] = [[] for _ in asked]
    waiting = list(range(len(asked)))
    while waiting or crowd.live:
        if waiting and choose.random() < 0.7:
            row = waiting.pop(0)
            crowd.add(f"{row}", asked[row], [5, 9, 9])
        if crowd.live:
            logits = {name: logits_of(int(name), len(found[int(name)])) for name in crowd.live}
            for name, token in crowd.step(logits)[0].items():
                found[int(name)].append(token)
                if len(found[int(name)]) == 8:
                    crowd.remove(name)
    assert found == alone
    assert len({tuple(one) for one in alone}) == len(alone)


DISTRIBUTIONS = [
    {"temperature": 0.7, "top_a": 0.2},
    {"eta_cutoff": 0.01, "epsilon_cutoff": 0.002},
    {"nsigma": 1.5, "smoothing_factor": 0.3, "smoothing_curve": 2.0},
    {"dynatemp_min": 0.5, "dynatemp_max": 1.5, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.5, "temperature_last": True, "min_p": 0.05, "nsigma": 2.0},
]


@pytest.mark.parametrize("fields", DISTRIBUTIONS, ids=" ".join)
@pytest.mark.parametrize("planted", [False, True])
def test_the_distribution_is_aphrodites(fields, planted):
    """A G-test at 1e-9 against Aphrodite's own processing of the same logits. Another temperature is seen."""
    logits = logits_of(1, 0) * 0.3
    batch = Batch()
    for row in range(ROWS):
        batch.add(f"{row}", SamplingParams(**fields), [5])
    batch.batch.condense()
    batch.batch.refresh_metadata()
    metadata, own, one = batch.batch.sampling_metadata, Sampler(), torch.stack([logits] * ROWS)
    edited = own._execute_samplers_in_order(one.clone(), metadata)
    for processor in metadata.logitsprocs.argmax_invariant:
        edited = processor.apply(edited)
    if metadata.top_k is not None or metadata.top_p is not None:
        from aphrodite.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

        edited = apply_top_k_top_p_pytorch(edited, metadata.top_k, metadata.top_p)
    p = (edited[0] * (2.0 if planted else 1.0)).double().softmax(0)
    found: Counter[int] = Counter()
    batch = Batch()
    for row in range(ROWS):
        batch.add(f"{row}", SamplingParams(**fields), [5])
    for _ in range(500):
        found.update(batch.step({f"{row}": logits for row in range(ROWS)})[0].values())
    total, kept = sum(found.values()), int((p > 0).sum())
    assert all(p[token] > 0 for token in found)
    g = 2 * sum(n * math.log(n / total / float(p[token])) for token, n in found.items())
    limit = kept + 6.1 * math.sqrt(2 * kept) + 2 * 20.7  # above chi-square's quantile of 1 − 1e-9
    assert (g > limit) == planted


@pytest.mark.parametrize("fields", [{"tfs": 0.9}, {"typical_p": 0.9}], ids=" ".join)
def test_tail_free_and_typical_differ_by_the_token_at_the_boundary(fields):
    logits, batch = logits_of(1, 0) * 0.3, Batch()
    batch.add("one", SamplingParams(**fields), [5])
    batch.batch.condense()
    batch.batch.refresh_metadata()
    edited = Sampler()._execute_samplers_in_order(logits[None].clone(), batch.batch.sampling_metadata)
    slots = Slots(1, VOCAB)
    slots.add(0, translate_params(SamplingParams(**fields), ()), prompt=[5])
    kept = set(compute_distribution(logits, slots[0]).ids.tolist())
    assert len(kept ^ set(edited[0].isfinite().nonzero().flatten().tolist())) == 1


def test_beside_a_request_that_aphrodite_serves_the_others_are_tailraces():
    params = SamplingParams(seed=3, temperature=1.3, extra_args={"min_k": 1}, logprobs=2)
    alone, beside = Batch(), Batch()
    alone.add("one", params, [5])
    beside.add("skewed", SamplingParams(skew=0.5), [7])
    beside.add("one", params, [5])
    for step in range(5):
        logits = {"one": logits_of(1, step), "skewed": logits_of(2, step)}
        assert alone.step(logits)[0]["one"] == beside.step(logits)[0]["one"]


def test_a_planted_error_leaves_the_step_to_aphrodite(monkeypatch):
    batch, calm = Batch(), Batch()
    for one in (batch, calm):
        one.add("one", SamplingParams(seed=3, repetition_penalty=1.3), [5])
    logits = [{"one": logits_of(1, step)} for step in range(4)]
    expected = [calm.step(one)[0]["one"] for one in logits]
    assert batch.step(logits[0])[0]["one"] == expected[0]
    with monkeypatch.context() as broken:
        broken.setattr(ours, "draw_rows", lambda *args: 1 / 0)
        batch.step(logits[1])
    assert ours.errors == {"ZeroDivisionError": 1}
    batch.live["one"].output_token_ids[-1] = expected[1]
    assert [batch.step(one)[0]["one"] for one in logits[2:]] == expected[2:]
