"""Drafts: tailrace in the place of vLLM's rejection sampler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from crowd import CONFIG, CPU, VOCAB, Crowd
from drafted import draw_tokens, make_drafting_config, verify_tokens
from vllm import SamplingParams
from vllm.config import speculative
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from tailrace.integrations.vllm import verification
from tailrace.integrations.vllm.fallbacks import fallbacks

DRAFTS = 3


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
        tokens = draw_tokens(plain, rows[:, step].clone())
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
        found = verify_tokens(drafted, drafts, torch.cat(logits), probs)
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
        found = verify_tokens(crowd, [[draft] for draft in drafts], row.repeat(16, 1), probs)
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
        found = verify_tokens(crowd, drafts, row.repeat(24, 1), probs.flatten(0, 1))
        for i, (state, tokens) in enumerate(zip(crowd.live.values(), found, strict=True)):
            counts[i % 2, tokens[0]] += 1
            state.output_token_ids += tokens
    for seen in counts[:, ids]:
        assert seen.sum() == 3000 * 4
        assert 2 * float((seen * (seen / (p * seen.sum())).log()).sum()) < 41.4
    assert not fallbacks, fallbacks


def test_positions_behind_uncounted_drafts_are_left_to_vllm() -> None:
    """Asynchronous scheduling: vLLM's list has a place for each draft of the last step, also of those that it refused.
    By other positions a seed would have other tokens."""
    crowd = Crowd(7, SimpleNamespace(**{**vars(CONFIG), "speculative_config": SimpleNamespace()}))
    name = crowd.add(SamplingParams(seed=1, temperature=0.7))
    crowd.batch.refresh_metadata()
    verify_tokens(crowd, [[4, 5]], torch.randn(3, VOCAB))
    assert not fallbacks
    crowd.live[name].output_token_ids += [-1, -1, -1]
    verify_tokens(crowd, [[4, 5]], torch.randn(3, VOCAB))
    assert list(fallbacks) == ["drafts whose number vLLM has not read yet (asynchronous scheduling)"]


# those of this vLLM, and of later ones
RULES = sorted({*get_args(getattr(speculative, "RejectionSampleMethod", None)), "fly", "of a later vLLM"})


@pytest.mark.parametrize("method", RULES)
def test_only_rules_that_keep_the_distribution_are_replaced(method: str) -> None:
    """All others stay vLLM's, with a line in the log (FLy is of vLLM 0.33)."""
    calls: list[Any] = []
    crowd, verifier = Crowd(8, make_drafting_config(method)), RejectionSampler(Sampler())
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
