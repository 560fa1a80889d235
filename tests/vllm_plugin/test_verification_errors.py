"""Errors of tailrace beside drafts: vLLM draws, and its verification gets no drafts that it can't verify."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from crowd import CPU, VOCAB, Crowd
from drafted import draw_tokens, make_drafting_config, verify_tokens
from planting import make_failing
from vllm import SamplingParams
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from tailrace.integrations.vllm import verification
from tailrace.integrations.vllm.fallbacks import fallbacks
from tailrace.sampling import Sampler as Ours
from tailrace.sampling import Slots

pytestmark = pytest.mark.planted


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("place", [None, (Slots, "commit"), (Ours, "begin"), (verification, "make_draft_rows")])
def test_vllm_draws_one_token_where_tailrace_does_not(
    place: tuple[Any, str] | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its drafts, and with top-k, where vLLM's own verification ends the engine on a CPU. Neighbours of a
    request that is refused keep tailrace's tokens; after an error in tailrace each request has a token of vLLM's."""
    crowd = Crowd(6)
    for fields in ({"top_k": 1}, {"temperature": 0.0, "logprobs": 2}, {"top_k": 1, "presence_penalty": 0.1}):
        crowd.add(SamplingParams(**fields), prompt=[1, 2])
    name = crowd.add(SamplingParams(top_k=1, logprobs=-1 if refused else 1))
    crowd.batch.refresh_metadata()
    if place == (Slots, "commit"):  # it is not called before there is output
        draw_tokens(crowd, torch.randn(4, VOCAB))
        for state in crowd.live.values():
            state.output_token_ids.append(4)
    logits = torch.randn(4, 3, VOCAB) * 4
    drafts = logits.argmax(-1)[:, :2].tolist()
    likeliest = logits.argmax(-1).tolist()
    with monkeypatch.context() as patch:
        if place is not None:
            patch.setattr(place[0], place[1], make_failing())
        metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
        out = RejectionSampler(Sampler())(metadata, None, logits.flatten(0, 1), crowd.metadata)
    tokens, reports = RejectionSampler.parse_output(out.sampled_token_ids, VOCAB, (), out.logprobs_tensors)
    alone = [name] if refused else []
    alone = list(crowd.live) if place is not None else alone
    assert tokens == [ids[:1] if one in alone else ids for one, ids in zip(crowd.order(), likeliest, strict=True)]
    assert reports.cu_num_generated_tokens == [0, *accumulate(map(len, tokens))]
    assert reports.logprob_token_ids[:, 0].tolist() == [id for ids in tokens for id in ids]
    rows = logits.log_softmax(-1)
    wanted = torch.cat([rows[i, : len(ids)].max(-1).values for i, ids in enumerate(tokens)])
    first = len(tokens[0])  # of a request without logprobs
    asked = slice(first, first + len(tokens[1]))
    torch.testing.assert_close(torch.tensor(reports.logprobs[asked, 0]), wanted[asked])
    assert set(fallbacks) == ({"logprobs of the whole vocabulary"} if refused else set()) | (
        {"an error in tailrace's verification of drafts (RuntimeError)"} if place is not None else set()
    )


@pytest.mark.parametrize(
    "name",
    [
        "prepare_batch",
        "make_draft_rows",
        "draw_output",
        "merge_outputs",
        "pad_output",
        "first_rows",
        "must_drop_drafts",
        "change_logits",
    ],
)
@pytest.mark.parametrize("refused", [False, True])
def test_greedy_tokens_are_right_whatever_part_of_the_verification_fails(
    name: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the parts that only serve a request that is refused, or a step after another error."""
    crowd = Crowd(7)
    for fields in ({}, {"presence_penalty": 0.1}, {"logprobs": -1 if refused else 0}):
        crowd.add(SamplingParams(temperature=0.0, **fields))
    crowd.batch.refresh_metadata()
    logits = torch.randn(3, 3, VOCAB) * 4
    likeliest = logits.argmax(-1).tolist()
    drafts = [[*ids[:1], (ids[1] + 1) % VOCAB] for ids in likeliest]
    monkeypatch.setattr(verification, name, make_failing())
    if name in ("pad_output", "must_drop_drafts"):
        monkeypatch.setattr(verification, "draw_output", make_failing())
    metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
    calls: list[Any] = []

    def theirs(*args: Any) -> SamplerOutput:
        calls.append(args)
        return SamplerOutput(torch.tensor([[ids[0], -1, -1] for ids in likeliest]), None)

    given = (RejectionSampler(Sampler()), metadata, None, logits.flatten(0, 1), crowd.metadata)
    out = verification.verify_drafts(theirs, *given)
    assert len(calls) <= 1
    assert torch.equal(given[3], logits.flatten(0, 1))
    tokens = RejectionSampler.parse_output(out.sampled_token_ids, VOCAB)[0]
    for ids, wanted in zip(tokens, likeliest, strict=True):
        assert ids in (wanted[:1], wanted[:2])


@pytest.mark.parametrize("fields", [{"logit_bias": {7: 50.0}}, {"min_p": 1.0, "temperature": 1.0}])
def test_a_step_that_vllm_serves_keeps_bias_and_min_p(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own verification knows neither, so its sampler draws without the drafts."""
    processors = build_logitsprocs(make_drafting_config("standard"), CPU, False, False)
    crowd = Crowd(8, make_drafting_config("standard"))
    crowd.batch.logitsprocs = processors
    crowd.add(SamplingParams(**({"temperature": 0.0} | fields)), prompt=[1])
    crowd.batch.refresh_metadata()
    monkeypatch.setattr(verification, "make_draft_rows", make_failing())
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5))
    wanted = 7 if "logit_bias" in fields else int(logits[0].argmax())
    assert verify_tokens(crowd, [[4, 5]], logits) == [[wanted]]
    assert len(fallbacks) == 1
