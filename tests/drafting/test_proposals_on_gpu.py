"""Drawn drafts as the GPU's kernels make them: the CPU kernels' q and tokens, left where verification reads them. And
that planted faults are seen."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from drafting.test_proposals import FIELDS, PROMPT, rows_of, sampler_for
from kernels.backends import DEVICES, QUIET
from tailrace.drafting.base import Draft, DraftRequest
from tailrace.drafting.draft_sampler import DraftBatch, DraftSampler
from tailrace.sampling import Rows

FALLING_BACK = {"tail-free", "mirostat", "adaptive-p", "SynthID"}  # stages that the GPU's kernels don't have
VOCAB = 1000


def drafts_by(backend: str, fields: list[dict], logits: torch.Tensor) -> list[Draft]:
    """Of a request for each of these, from logits [steps, requests, V]."""
    sampler = sampler_for(*fields, vocab=logits.shape[2])
    sampler.backend = backend
    asks = [DraftRequest(slot, PROMPT, logits.shape[0], "rejection") for slot in range(len(fields))]
    with DraftSampler(sampler).start(asks) as draft_batch:
        going = list(range(len(asks)))
        for step in logits.to(DEVICES[backend]):
            going = draft_batch.sample(step[going], going)
        return draft_batch.drafts()


@QUIET
@pytest.mark.parametrize(
    ("dtype", "every", "vocab"),
    [
        pytest.param(torch.float32, 8, 257, id="few"),
        pytest.param(torch.float32, 1, VOCAB, id="dtype0", marks=pytest.mark.long),
        pytest.param(torch.bfloat16, 1, VOCAB, id="dtype1", marks=pytest.mark.long),
    ],
)
def test_q_and_tokens_are_the_cpus(dtype, every, vocab, monkeypatch):
    """All methods side by side, drafts before counted."""
    monkeypatch.setattr(DraftBatch, "_sample_from_q_row_by_row", None)
    names = [name for name in FIELDS if name not in FALLING_BACK][::every]
    logits = torch.cat([rows_of(3, vocab, seed) for seed in range(len(names))], 1).to(dtype)
    mine = drafts_by("gpu", [FIELDS[name] for name in names], logits)
    for name, got, due in zip(names, mine, drafts_by("cpu", [FIELDS[name] for name in names], logits), strict=True):
        assert got.q is not None
        assert due.q is not None
        assert got.q.device.type == torch.device(DEVICES["gpu"]).type
        torch.testing.assert_close(
            got.q.cpu(), due.q, atol=2e-6, rtol=1e-5, msg=lambda said, name=name: f"{name}: {said}"
        )
        assert got.tokens == due.tokens, name
        assert float((got.q.double().sum(1) - 1).abs().max()) <= 1e-6


@QUIET
@pytest.mark.parametrize("name", sorted(FALLING_BACK))
def test_what_the_kernels_lack_is_drawn_by_the_reference(name):
    [got], [due] = (drafts_by(backend, [FIELDS[name]], rows_of(2, VOCAB)) for backend in ("gpu", "reference"))
    assert got.tokens == due.tokens
    assert torch.equal(got.q.cpu(), due.q)


@pytest.mark.few(1)
@QUIET
@pytest.mark.parametrize("vocab", [8, 31, 513, 20_000])
def test_any_vocabulary(vocab):
    """Of fewer ids than there are parts, and where a part has many chunks."""
    fields = [{}, {"temperature": 3.0}, {"top_p": 0.97, "temperature": 6.0}]
    logits = torch.cat([rows_of(2, vocab, seed) for seed in range(3)], 1)
    for got, due in zip(drafts_by("gpu", fields, logits), drafts_by("cpu", fields, logits), strict=True):
        assert got.tokens == due.tokens
        torch.testing.assert_close(got.q.cpu(), due.q, atol=2e-6, rtol=1e-5)


@pytest.mark.long
@QUIET
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_broken_rows_beside_good_ones(bad):
    logits = torch.cat([rows_of(2, VOCAB, seed) for seed in range(2)], 1)
    alone = drafts_by("gpu", [{"top_k": 9}, {}], logits)
    broken = logits.clone()
    broken[1, 0] = bad
    mine = drafts_by("gpu", [{"top_k": 9}, {}], broken)
    assert [draft.tokens for draft in mine] == [alone[0].tokens[:1], alone[1].tokens]
    assert torch.equal(mine[1].q, alone[1].q)


@pytest.mark.long
@QUIET
@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
def test_q_is_verified_where_it_lies(rule):
    """The tokens of a step, q left on the device, are those with q on the CPU, side by side or not."""
    fields = [{}, {"top_k": 12}, {"top_p": 0.8}, {"temperature": 2.0, "presence_penalty": 1.0}]
    logits = torch.cat([rows_of(3, VOCAB, seed) for seed in range(4)], 1)
    drafts = drafts_by("gpu", fields, logits[:2])
    target = (logits + rows_of(3, VOCAB, 9) * 0.3).transpose(0, 1).reshape(-1, VOCAB)  # [requests · steps, V]
    counts = [len(draft.tokens) for draft in drafts]
    assert counts == [2] * 4
    whole = torch.cat([torch.cat([draft.q.cpu(), torch.zeros(1, VOCAB)]) for draft in drafts])
    found = []
    for backend, given in product(("gpu", "cpu"), (None, whole)):
        sampler = sampler_for(*fields, vocab=VOCAB)
        sampler.backend = backend
        q = [draft.q.to(DEVICES[backend]) for draft in drafts] if given is None else given
        tokens = [draft.tokens for draft in drafts]
        rows = Rows.drafted(range(4), [len(PROMPT)] * 4, tokens, [rule] * 4, q)
        found.append(sampler(target.to(DEVICES[backend]), rows).tokens())
    assert all(tokens == found[0] for tokens in found)
    assert any(len(tokens) > 1 for tokens in found[0])


@pytest.mark.long
@QUIET
def test_another_noise_or_another_place_is_seen(monkeypatch):
    """Planted: the stream of another draft; q of the row before."""
    logits = rows_of(4, VOCAB)
    [due] = drafts_by("gpu", [{"temperature": 2.0}], logits)
    from tailrace.drafting import draft_sampler

    monkeypatch.setattr(draft_sampler, "noise_of", lambda begin, step: (begin, 17 + step))
    assert drafts_by("gpu", [{"temperature": 2.0}], logits)[0].tokens != due.tokens
    monkeypatch.undo()
    monkeypatch.setattr("tailrace.kernels.proposals.ProposalTensor.address", lambda self, row: self.q.data_ptr())
    assert not torch.allclose(drafts_by("gpu", [{"temperature": 2.0}], logits)[0].q[0], due.q[0])
