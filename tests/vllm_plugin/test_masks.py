"""Sampling masks in vLLM's V1 runner: in its own lists, what its own top-k and top-p leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from crowd import CONFIG, CPU, VOCAB, Crowd
from release import since
from vllm import SamplingParams
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from tailrace.integrations.vllm import layout, masks

pytestmark = pytest.mark.skipif(bool(layout.describe_missing(masks.WANTED)), reason="this vLLM has no place for them")
MODEL = SimpleNamespace(**{**vars(CONFIG.model_config), "return_sampling_mask": True})
MASKED: Any = SimpleNamespace(**{**vars(CONFIG), "model_config": MODEL})
FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 60, "seed": 5},
    {"temperature": 1.0, "top_k": 250, "top_p": 0.6, "seed": 6},
]


def kept(logits: torch.Tensor, params: SamplingParams) -> list[int]:
    """What vLLM's own truncation leaves of a row."""
    row, k, p = logits[None] / params.temperature, torch.tensor([params.top_k]), torch.tensor([params.top_p])
    return apply_top_k_top_p(row.clone(), k, p)[0].isfinite().nonzero().squeeze(1).tolist()


def output_of(crowd: Crowd, tokens: list[list[int]]) -> ModelRunnerOutput:
    order = crowd.order()
    return ModelRunnerOutput(order, {name: i for i, name in enumerate(order)}, tokens)


def test_each_row_has_what_vllms_own_truncation_leaves() -> None:
    """Also beside a request that vLLM serves itself, whose lists are empty."""
    crowd = Crowd(11, MASKED)
    for fields in FIELDS:
        crowd.add(SamplingParams(**fields))
    refused = crowd.add(SamplingParams(temperature=1.0, top_k=9, logprobs=-1))
    for _ in range(8):
        crowd.settle()
        logits = crowd.logits()

        def step(_: Any, logits: torch.Tensor = logits) -> ModelRunnerOutput:
            return output_of(crowd, Sampler()(logits.clone(), crowd.metadata).sampled_token_ids.tolist())

        found = masks.with_masks(step, None)
        for row, name in enumerate(crowd.order()):
            [mask] = found.sampling_masks.slice_request(row, 1).to_nested_list()
            params = crowd.live[name].sampling_params
            assert mask == ([] if name == refused else kept(logits[row], params))
        crowd.keep(dict(zip(crowd.order(), [ids[0] for ids in found.sampled_token_ids], strict=True)))


@since("0.32", "it refuses masks beside drafts itself")
def test_every_token_of_a_verified_draft_has_its_own() -> None:
    crowd = Crowd(12, MASKED)
    for fields in FIELDS:
        crowd.add(SamplingParams(**fields))
    crowd.settle()
    order, drafts = crowd.order(), 2
    logits = torch.randn(len(order) * (drafts + 1), VOCAB, generator=crowd.noise) * 3
    guessed = [[int(logits[row * 3 + i].argmax()) for i in range(drafts)] for row in range(len(order))]

    def step(_: Any) -> ModelRunnerOutput:
        metadata = SpecDecodeMetadata.make_dummy(guessed, CPU)
        out = RejectionSampler(Sampler())(metadata, None, logits.clone(), crowd.metadata)
        return output_of(crowd, RejectionSampler.parse_output(out.sampled_token_ids, VOCAB)[0])

    found = masks.with_masks(step, None)
    lengths = set()
    for row, (name, ids) in enumerate(zip(order, found.sampled_token_ids, strict=True)):
        params = crowd.live[name].sampling_params
        listed = found.sampling_masks.slice_request(row, len(ids)).to_nested_list()
        assert listed == [kept(logits[row * 3 + i], params) for i in range(len(ids))]
        lengths.add(len(ids))
    assert len(lengths) > 1


def test_a_step_that_vllm_draws_has_empty_lists() -> None:
    crowd = Crowd(13, MASKED)
    crowd.add(SamplingParams(top_k=3, logprobs=-1))
    crowd.settle()
    found = masks.with_masks(lambda _: output_of(crowd, [[4]]), None)
    assert found.sampling_masks.slice_request(0, 1).to_nested_list() == [[]]


def test_the_output_that_vllm_shares_is_left_alone() -> None:
    Crowd(15, MASKED)
    assert masks.with_masks(lambda _: EMPTY_MODEL_RUNNER_OUTPUT, None).sampling_masks is None
