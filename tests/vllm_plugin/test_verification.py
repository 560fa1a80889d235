"""Drafts: tailrace in the place of vLLM's rejection sampler."""

from __future__ import annotations

import pytest
import torch
from crowd import CPU, VOCAB, Crowd
from vllm import SamplingParams
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

DRAFTS = 3


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
