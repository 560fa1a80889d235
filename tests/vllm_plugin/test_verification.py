"""Drafts: tailrace in the place of vLLM's rejection sampler."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from crowd import CONFIG, CPU, VOCAB, Crowd
from vllm import SamplingParams
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors, build_logitsprocs
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from tailrace.integrations.vllm import verification
from tailrace.integrations.vllm.fallbacks import fallbacks
from tailrace.sampling import Sampler as Ours
from tailrace.sampling import Slots

DRAFTS = 3


def raising(*args: Any, **more: Any) -> NoReturn:
    raise RuntimeError("planted")


def draw(crowd: Crowd, logits: torch.Tensor) -> list[int]:
    return Sampler()(logits, crowd.metadata).sampled_token_ids[:, 0].tolist()


def verify(
    crowd: Crowd, drafts: list[list[int]], logits: torch.Tensor, probs: torch.Tensor | None = None
) -> list[list[int]]:
    """The tokens of each request that stand."""
    metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
    out = RejectionSampler(Sampler())(metadata, probs, logits, crowd.metadata)
    return RejectionSampler.parse_output(out.sampled_token_ids, VOCAB)[0]


@pytest.mark.parametrize("dense", [False, True])
def test_seeded_requests_get_the_tokens_that_they_get_without_drafts(dense: bool) -> None:
    """Half of the drafts are right, so that runs of all lengths come; the requests' histories have edits that look at
    them."""
    fields = {"presence_penalty": 0.7, "repetition_penalty": 1.2, "top_p": 0.9}
    plain, drafted = Crowd(1), Crowd(1)
    for crowd in (plain, drafted):
        for seed in range(4):
            crowd.add(SamplingParams(temperature=1.0, seed=seed, **fields), prompt=[1, 2, seed], name=f"w{seed}")
        crowd.batch.refresh_metadata()
    steps, noise = 30, torch.Generator().manual_seed(0)
    rows = torch.randn(4, steps + DRAFTS + 1, VOCAB, generator=noise) * 2
    wanted: list[list[int]] = [[] for _ in range(4)]
    for step in range(steps + DRAFTS + 1):
        tokens = draw(plain, rows[:, step].clone())
        for i, (name, token) in enumerate(zip(plain.order(), tokens, strict=True)):
            wanted[i].append(token)
            plain.live[name].output_token_ids.append(token)
    lengths = set()
    while min(len(state.output_token_ids) for state in drafted.live.values()) < steps:
        drafts, logits = [], []
        for i, name in enumerate(drafted.order()):
            done = min(len(drafted.live[name].output_token_ids), steps)
            right = wanted[i][done : done + DRAFTS]
            drafts.append([token if drafted.random.random() < 0.6 else (token + 1) % VOCAB for token in right])
            logits.append(rows[i, done : done + DRAFTS + 1])
        probs = torch.full((4 * DRAFTS, VOCAB), 1 / VOCAB) if dense else None
        found = verify(drafted, drafts, torch.cat(logits), probs)
        for i, name in enumerate(drafted.order()):
            output = drafted.live[name].output_token_ids
            if len(output) < steps:
                output += found[i]
                lengths.add(len(found[i]))
    for i, name in enumerate(drafted.order()):
        assert drafted.live[name].output_token_ids[:steps] == wanted[i][:steps]
    assert lengths == set(range(1, DRAFTS + 2))


def test_unseeded_drafts_keep_the_distribution() -> None:
    """p = .6 / .34 / .06, drafted from q = .2 / .3 / .5. The G-test's threshold is that of 1e-9 at two degrees. vLLM's
    own sampler has the temperatures of a CPU from memory that nobody has written (docs/integrations/vllm.md)."""
    crowd, p, q = Crowd(3), torch.tensor([0.6, 0.34, 0.06]), torch.tensor([0.2, 0.3, 0.5])
    for _ in range(8):
        crowd.add(SamplingParams(temperature=0.8))
    crowd.batch.refresh_metadata()
    ids = torch.tensor([5, 9, 2])
    row, probs = torch.full((VOCAB,), -60.0), torch.zeros(8, VOCAB)
    row[ids], probs[:, ids] = p.log() * 0.8, q
    counts, noise = torch.zeros(VOCAB), torch.Generator().manual_seed(5)
    for _ in range(3000):
        drafts = ids[torch.multinomial(q, 8, replacement=True, generator=noise)].tolist()
        found = verify(crowd, [[draft] for draft in drafts], row.repeat(16, 1), probs)
        for state, tokens in zip(crowd.live.values(), found, strict=True):
            counts[tokens[0]] += 1
            state.output_token_ids += tokens
    seen = counts[ids]
    assert counts.sum() == seen.sum()
    assert 2 * float((seen * (seen / (p * seen.sum())).log()).sum()) < 41.4


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("none", [-1, VOCAB, VOCAB + 7])
def test_the_first_id_that_is_no_token_ends_the_drafts(none: int, dense: bool) -> None:
    """vLLM pads with −1; an n-gram may repeat a placeholder beyond the vocabulary. What follows is nothing, though it
    may be an id, and its logits may be anything. The tokens are those without the padding; requests with a seed, greedy
    ones, and with logprobs, also with nothing but padding in the batch."""
    lengths = set()
    for kept in ([2, 1, 0, 3], [0, 0, 0, 0], [0, 3, 0, 1]):
        results = []
        for padded in (False, True):
            crowd = Crowd(5)
            for seed in range(3):
                crowd.add(SamplingParams(temperature=1.0, seed=seed, presence_penalty=0.5), prompt=[1, 2])
            crowd.add(SamplingParams(temperature=0.0, logprobs=2), prompt=[1, 2])
            crowd.batch.refresh_metadata()
            logits = torch.randn(4, DRAFTS + 1, VOCAB, generator=torch.Generator().manual_seed(1))
            guessed = logits.argmax(-1)[:, :DRAFTS]
            logits[torch.arange(4)[:, None], torch.arange(DRAFTS), guessed] += 4  # some stand
            drafts, rows = guessed.tolist(), list(logits)
            for i, count in enumerate(kept):
                if padded:
                    drafts[i][count:] = ([none, 7, none] * 2)[: DRAFTS - count]
                    rows[i][count + 1 :] = float("nan")
                else:
                    drafts[i], rows[i] = drafts[i][:count], rows[i][: count + 1]
            probs = torch.full((sum(map(len, drafts)), VOCAB), 1 / VOCAB) if dense else None
            metadata = SpecDecodeMetadata.make_dummy(drafts, CPU)
            out = RejectionSampler(Sampler())(metadata, probs, torch.cat(rows), crowd.metadata)
            width = 1 + max(map(len, drafts))
            assert out.sampled_token_ids.shape == (4, width)
            assert out.logprobs_tensors.logprobs.shape == (4 * width, 3)
            assert out.logprobs_tensors.selected_token_ranks.shape == (4 * width,)
            assert int(out.logprobs_tensors.logprob_token_ids.min()) >= 0
            results.append(RejectionSampler.parse_output(out.sampled_token_ids, VOCAB, (), out.logprobs_tensors))
        (tokens, reports), (wanted, wanted_reports) = results[1], results[0]
        assert tokens == wanted
        assert reports.logprob_token_ids.tolist() == wanted_reports.logprob_token_ids.tolist()
        assert reports.logprobs.tolist() == wanted_reports.logprobs.tolist()
        lengths |= set(map(len, tokens))
    assert lengths >= {1, 2, 4}
    assert not fallbacks, fallbacks


def test_padding_keeps_the_distribution_of_unseeded_drafts() -> None:
    """As below, with −1 behind the one draft, and in place of it for half of the requests."""
    crowd, p, q = Crowd(3), torch.tensor([0.6, 0.34, 0.06]), torch.tensor([0.2, 0.3, 0.5])
    for _ in range(8):
        crowd.add(SamplingParams(temperature=0.8))
    crowd.batch.refresh_metadata()
    ids = torch.tensor([5, 9, 2])
    row, probs = torch.full((VOCAB,), -60.0), torch.full((8, 2, VOCAB), float("nan"))
    row[ids] = p.log() * 0.8
    probs[::2, 0] = 0.0
    probs[::2, 0, ids] = q
    counts, noise = torch.zeros(2, VOCAB), torch.Generator().manual_seed(5)
    for _ in range(3000):
        guessed = ids[torch.multinomial(q, 8, replacement=True, generator=noise)].tolist()
        drafts = [[-1 if i % 2 else draft, -1] for i, draft in enumerate(guessed)]
        found = verify(crowd, drafts, row.repeat(24, 1), probs.flatten(0, 1))
        for i, (state, tokens) in enumerate(zip(crowd.live.values(), found, strict=True)):
            counts[i % 2, tokens[0]] += 1
            state.output_token_ids += tokens
    for seen in counts[:, ids]:
        assert seen.sum() == 3000 * 4
        assert 2 * float((seen * (seen / (p * seen.sum())).log()).sum()) < 41.4
    assert not fallbacks, fallbacks


@pytest.mark.planted
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
        draw(crowd, torch.randn(4, VOCAB))
        for state in crowd.live.values():
            state.output_token_ids.append(4)
    logits = torch.randn(4, 3, VOCAB) * 4
    drafts = logits.argmax(-1)[:, :2].tolist()
    likeliest = logits.argmax(-1).tolist()
    with monkeypatch.context() as patch:
        if place is not None:
            patch.setattr(place[0], place[1], raising)
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


@pytest.mark.planted
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
    monkeypatch.setattr(verification, name, raising)
    if name in ("pad_output", "must_drop_drafts"):
        monkeypatch.setattr(verification, "draw_output", raising)
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


def test_positions_behind_uncounted_drafts_are_left_to_vllm() -> None:
    """Asynchronous scheduling: vLLM's list has a place for each draft of the last step, also of those that it refused.
    By other positions a seed would have other tokens."""
    crowd = Crowd(7, SimpleNamespace(**{**vars(CONFIG), "speculative_config": SimpleNamespace()}))
    name = crowd.add(SamplingParams(seed=1, temperature=0.7))
    crowd.batch.refresh_metadata()
    verify(crowd, [[4, 5]], torch.randn(3, VOCAB))
    assert not fallbacks
    crowd.live[name].output_token_ids += [-1, -1, -1]
    verify(crowd, [[4, 5]], torch.randn(3, VOCAB))
    assert list(fallbacks) == ["drafts whose number vLLM has not read yet (asynchronous scheduling)"]


def drafting(method: str) -> Any:
    """A configuration with drafts that this method verifies."""
    return SimpleNamespace(**{**vars(CONFIG), "speculative_config": SimpleNamespace(rejection_sample_method=method)})


@pytest.mark.parametrize("method", ["standard", "block", "synthetic", "fly", "of a later vLLM"])
def test_only_rules_that_keep_the_distribution_are_replaced(method: str) -> None:
    """All others stay vLLM's, with a line in the log (FLy is of vLLM 0.33)."""
    calls: list[Any] = []
    crowd, verifier = Crowd(8, drafting(method)), RejectionSampler(Sampler())
    crowd.add(SamplingParams(temperature=0.0))
    crowd.batch.refresh_metadata()
    metadata = SpecDecodeMetadata.make_dummy([[3]], CPU)
    given = (verifier, metadata, None, torch.randn(2, VOCAB), crowd.metadata)
    found = verification.verify_drafts(lambda *args: calls.append(args) or "theirs", *given)  # type: ignore
    if method in ("standard", "block"):
        assert found != "theirs"
        assert not fallbacks
    else:
        assert found == "theirs"
        assert calls == [given]
        assert list(fallbacks) == [f"the server verifies drafts by the method {method}"]


def test_a_batch_that_nobody_follows_is_vllms() -> None:
    calls: list[Any] = []
    crowd, verifier = Crowd(8), RejectionSampler(Sampler())
    crowd.add(SamplingParams(temperature=0.0))
    crowd.batch.refresh_metadata()
    crowd.metadata.logitsprocs = LogitsProcessors()
    metadata = SpecDecodeMetadata.make_dummy([[3]], CPU)
    given = (verifier, metadata, None, torch.randn(2, VOCAB), crowd.metadata)
    assert verification.verify_drafts(lambda *args: calls.append(args) or "theirs", *given) == "theirs"  # type: ignore
    assert calls == [given]
    assert not fallbacks


@pytest.mark.planted
@pytest.mark.parametrize("fields", [{"logit_bias": {7: 50.0}}, {"min_p": 1.0, "temperature": 1.0}])
def test_a_step_that_vllm_serves_keeps_bias_and_min_p(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own verification knows neither, so its sampler draws without the drafts."""
    processors = build_logitsprocs(drafting("standard"), CPU, False, False)
    crowd = Crowd(8, drafting("standard"))
    crowd.batch.logitsprocs = processors
    crowd.add(SamplingParams(**({"temperature": 0.0} | fields)), prompt=[1])
    crowd.batch.refresh_metadata()
    monkeypatch.setattr(verification, "make_draft_rows", raising)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5))
    wanted = 7 if "logit_bias" in fields else int(logits[0].argmax())
    assert verify(crowd, [[4, 5]], logits) == [[wanted]]
    assert len(fallbacks) == 1
