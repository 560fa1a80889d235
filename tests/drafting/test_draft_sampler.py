"""Draft logits → drafts: coupled ones are what the sampler draws; drawn ones have exactly the law that comes with them,
and noise that nothing else has; slots are as they were before. And that planted faults are seen."""

from __future__ import annotations

import contextlib
import copy
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats

from kernels.backends import DEVICES, QUIET
from tailrace import kernels
from tailrace.drafting import draft_sampler
from tailrace.drafting.base import Draft, DraftRequest
from tailrace.drafting.draft_sampler import DraftSampler, compute_proposal, draw_by_inversion, fit_vocabulary
from tailrace.kernels.constants import ACCEPT_STREAM, DRAFT_STREAM, DRAW_STREAM, RESIDUAL_STREAM, XTC_STREAM
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.reference import compute_distribution

ALPHA = 1e-6
V = 40
PROMPT = [3, 5, 3, 7]
DRAWN = ("rejection", "block", "typical")


def sampler_for(*fields: dict, vocab: int = V) -> Sampler:
    slots = Slots(len(fields), vocab)
    for slot, params in enumerate(fields):
        slots.add(slot, SamplingParams(**params), key=11 + slot, prompt=PROMPT)
    return Sampler(slots)


def rows_of(steps: int, sequences: int = 1, seed: int = 5) -> torch.Tensor:
    """Logits [steps, sequences, V], different everywhere."""
    return torch.randn(steps, sequences, V, generator=torch.Generator().manual_seed(seed)) * 2


def drafts_of(sampler: Sampler, asks: list[DraftRequest], logits: torch.Tensor) -> list[Draft]:
    """What comes of logits [steps, len(asks), V]."""
    with DraftSampler(sampler).start(asks) as draft_batch:
        going = list(range(len(asks)))
        for step in logits:
            going = draft_batch.sample(step[going], going)
        assert not going
        return draft_batch.drafts()


def said(sampler: Sampler, logits: torch.Tensor, slot: int = 0) -> list[int]:
    """What plain sampling says, each token committed before the next is drawn."""
    tokens = []
    for row in logits:
        out = sampler(row[None], Rows.plain([slot], [0], [len(PROMPT) + len(tokens)]))
        tokens += out.token_ids[0].tolist()
        sampler.slots.commit([slot], [tokens[-1:]])
    return tokens


PARAMS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 0.8},
    "nucleus": {"temperature": 1.3, "top_p": 0.9, "top_k": 12, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.8, "presence_penalty": 1.0, "frequency_penalty": 0.7},
    "windowed": {"repetition_penalty": 3.0, "penalty_last_n": 3},
    "dry": {"temperature": 0.0, "dry_multiplier": 5.0, "dry_allowed_length": 1},
    "min_tokens": {"min_tokens": 3, "stop_token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "temperature": 2.0},
    "forced": {"forced_token_ids": (9, 30, 2)},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "mirostat": {"mirostat": 2, "mirostat_tau": 2.0},
    "logprobs": {"logprobs": 3},
}


@pytest.mark.parametrize("name", PARAMS)
def test_coupled_drafts_are_what_plain_sampling_says(name):
    """Same logits, same tokens: what moves from token to token moves for the drafts too."""
    logits = rows_of(8)
    (draft,) = drafts_of(sampler_for(PARAMS[name]), [DraftRequest(0, PROMPT, 8)], logits)
    assert draft.q is None
    assert draft.tokens == said(sampler_for(PARAMS[name]), logits[:, 0])


@pytest.mark.parametrize("rule", ["exact", *DRAWN])
@pytest.mark.parametrize("name", PARAMS)
def test_slots_are_as_they_were(name, rule):
    """What is drawn after drafts were made is what would have been drawn without them."""
    logits, used = rows_of(6), sampler_for(PARAMS[name])
    assert said(used, logits[:2, 0]) == said(untouched := sampler_for(PARAMS[name]), logits[:2, 0])
    state = copy.deepcopy(used.slots[0].state)
    drafts_of(used, [DraftRequest(0, [*PROMPT, 1, 2], 5, rule)], rows_of(5, seed=6))
    assert used.slots[0].state == state
    assert used.slots[0].num_output == 2
    assert said(used, logits[2:, 0]) == said(untouched, logits[2:, 0])


def test_slots_are_as_they_were_after_a_failure():
    sampler = sampler_for(PARAMS["penalties"])
    with contextlib.suppress(RuntimeError), DraftSampler(sampler).start([DraftRequest(0, PROMPT, 3)]) as draft_batch:
        draft_batch.sample(rows_of(1)[0], [0])
        raise RuntimeError
    assert sampler.slots[0].num_output == 0
    assert said(sampler, rows_of(4)[:, 0]) == said(sampler_for(PARAMS["penalties"]), rows_of(4)[:, 0])


# ---- drawn


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 7},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"top_p": 0.0},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 1e-45},
        {"logit_bias": {4: 9.0, 5: -9.0}},
        {"repetition_penalty": 2.0, "presence_penalty": 1.0},
        {"allowed_token_ids": [2, 8, 30]},
        {"typical_p": 0.6},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"mirostat": 2, "mirostat_tau": 2.0},
        {"adaptive_target": 0.3},
    ],
)
def test_a_proposal_is_the_targets_distribution_where_the_logits_are_the_same(fields):
    slot = sampler_for(fields).slots[0]
    for row in rows_of(20)[:, 0]:
        q, candidates = compute_proposal(row, slot, 5), compute_distribution(row, slot, 5)
        expected = torch.zeros(V, dtype=torch.float64)
        expected[candidates.ids] = candidates.probabilities()
        torch.testing.assert_close(q.double(), expected, atol=1e-7, rtol=1e-6)
        assert q.dtype == torch.float32
        assert abs(float(q.double().sum()) - 1) <= 1e-6


@pytest.mark.parametrize("vocab", [49_152, 131_072])
def test_a_proposal_over_a_large_vocabulary_sums_to_one(vocab):
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(1)) * 4
    for fields in ({}, {"top_p": 0.95}, {"temperature": 5.0}):
        q = compute_proposal(row.bfloat16(), sampler_for(fields, vocab=vocab).slots[0], 5)
        assert abs(float(q.double().sum()) - 1) <= 1e-6


def test_a_draw_is_where_its_number_lies_in_the_mass():
    q = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    for u, token in ((1e-300, 1), (0.2499, 1), (0.2501, 3), (0.7499, 3), (0.7501, 4), (1 - 2**-53, 4)):
        assert draw_by_inversion(q, u) == token
    assert draw_by_inversion(torch.tensor([0.1, 0.2, 0.0]) * 3, math.nextafter(1.0, 0.0)) == 1


@pytest.mark.parametrize("rule", DRAWN)
def test_drafts_are_drawn_from_the_q_that_comes_with_them(rule):
    """Exactly: the same number at the same place of the same mass, a stream for each."""
    sampler = sampler_for({"temperature": 0.9, "top_p": 0.9}, {"temperature": 1.1})
    asks = [DraftRequest(0, PROMPT, 4, rule), DraftRequest(1, [*PROMPT, 1], 2, rule)]
    for ask, draft in zip(asks, drafts_of(sampler, asks, rows_of(4, 2)), strict=True):
        assert draft.q is not None
        assert draft.q.shape == (ask.count, V)
        key = sampler.slots[ask.slot].key
        for j, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            assert q[token] > 0
            assert token == draw_by_inversion(q, kernels.uniform(key, len(ask.tokens), DRAFT_STREAM + j))


def law_of_drafts(count: int, take=draw_by_inversion) -> float:
    """p-value of drafts against their q, over so many positions."""
    q = compute_proposal(rows_of(1)[0, 0], sampler_for({"temperature": 1.5}).slots[0], 5)
    found = Counter(take(q, kernels.uniform(7, position, DRAFT_STREAM)) for position in range(count))
    expected = [float(mass) * count for mass in q]
    chi = sum((found[i] - e) ** 2 / e for i, e in enumerate(expected) if e >= 10)
    few = [i for i, e in enumerate(expected) if e < 10]
    if few:
        rest = sum(expected[i] for i in few)
        chi += (sum(found[i] for i in few) - rest) ** 2 / rest
    return float(stats.chi2.sf(chi, V - len(few) - (not few)))


def test_drafts_have_the_law_of_their_q():
    assert law_of_drafts(20_000) > ALPHA


def test_a_wrong_law_of_drafts_is_seen():
    assert law_of_drafts(20_000, lambda q, u: draw_by_inversion(q, u * 0.9)) < ALPHA
    assert law_of_drafts(20_000, lambda q, u: max(0, draw_by_inversion(q, u) - 1)) < ALPHA


# ---- what comes out of verification

TARGETS = [[0.5, 0.2, 0.2, 0.1], [0.05, 0.6, 0.3, 0.05], [0.25, 0.25, 0.1, 0.4]]
SOURCES = [[0.2, 0.5, 0.1, 0.2], [0.3, 0.3, 0.35, 0.05]]


def law_of_verified(rule: str, count: int) -> float:
    """p-value of the pairs of tokens that verified drafts come to, drawn on by plain sampling where a draft was
    rejected."""
    slots = Slots(count, 4)
    for slot in range(count):
        slots.add(slot, SamplingParams(), key=slot, prompt=[0])
    sampler, asks = Sampler(slots), [DraftRequest(slot, [0], 2, rule) for slot in range(count)]
    with DraftSampler(sampler).start(asks) as draft_batch:
        for row in SOURCES:
            draft_batch.sample(torch.tensor(row).log().expand(count, 4), range(count))
        drafts = draft_batch.drafts()
    proposals = torch.stack([torch.cat([draft.q, torch.zeros(1, 4)]) for draft in drafts]).flatten(0, 1)
    rows = Rows.drafted(range(count), [1] * count, [d.tokens for d in drafts], [rule] * count, proposals)
    out = sampler(torch.tensor(TARGETS).log().repeat(count, 1), rows)
    pairs = [tuple(ids[:n]) for ids, n in zip(out.token_ids.tolist(), out.num_tokens.tolist(), strict=True)]
    rng = torch.Generator().manual_seed(1)
    more = torch.multinomial(torch.tensor(TARGETS[1]), count, True, generator=rng).tolist()
    found = Counter((*pair, extra)[:2] for pair, extra in zip(pairs, more, strict=True))
    law = {(a, b): TARGETS[0][a] * TARGETS[1][b] * count for a in range(4) for b in range(4)}
    return float(stats.chi2.sf(sum((found[pair] - e) ** 2 / e for pair, e in law.items()), len(law) - 1))


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_verified_drafts_have_the_targets_law(rule):
    assert law_of_verified(rule, 8000) > ALPHA


@pytest.mark.long
@pytest.mark.parametrize("stream", [ACCEPT_STREAM, ACCEPT_STREAM - 1])
def test_noise_shared_with_verification_is_seen(stream, monkeypatch):
    """The first or the second draft's noise is the acceptance's own."""
    monkeypatch.setattr(draft_sampler, "noise_of", lambda begin, step: (begin + step, stream + step))
    assert law_of_verified("rejection", 8000) < ALPHA


def test_the_streams_are_nobody_elses():
    assert max(DRAW_STREAM, ACCEPT_STREAM, RESIDUAL_STREAM, XTC_STREAM) < DRAFT_STREAM


def test_no_number_is_used_twice(monkeypatch):
    """Drafts that a step throws away may have had a say in it (block verification): the next step's are drawn from
    fresh noise."""
    seen = []
    monkeypatch.setattr(
        draft_sampler, "noise_of", lambda *at, noise_of=draft_sampler.noise_of: seen.append(noise_of(*at)) or seen[-1]
    )
    for fields in ({}, {"mirostat": 2}):  # by the kernels, and in torch
        sampler = sampler_for(fields)
        seen.clear()
        for length in range(4):
            drafts_of(sampler, [DraftRequest(0, [0] * (1 + length), 3, "block")], rows_of(3))
        assert len(seen) == len(set(seen)) == 12


# ---- the rest


@QUIET
def test_a_device_sees_the_drafts_before_and_forgets_them():
    """Penalties of drafts that were made in the same step, on the GPU's kernels as on the CPU's; and afterwards none of
    them."""
    fields = {"temperature": 0.0, "repetition_penalty": 3.0, "frequency_penalty": 1.0}
    logits = torch.randn(V, generator=torch.Generator().manual_seed(3)).expand(4, V).contiguous()
    found = {}
    for backend in ("cpu", "gpu"):
        sampler = sampler_for(fields)
        sampler.backend = backend
        asks = [DraftRequest(0, PROMPT, 4)]
        found[backend] = [drafts_of(sampler, asks, logits[:, None].to(DEVICES[backend]))[0].tokens for _ in range(2)]
    assert found["gpu"] == found["cpu"]
    assert len(set(found["cpu"][0])) > 1, "the penalties do nothing here"


def test_greedy_requests_have_one_hot_drafts_under_any_rule():
    logits = rows_of(3)
    for rule in DRAWN:
        (draft,) = drafts_of(sampler_for({"temperature": 0.0}), [DraftRequest(0, PROMPT, 3, rule)], logits)
        assert (draft.tokens, draft.q) == (logits[:, 0].argmax(-1).tolist(), None)


def test_a_forced_token_is_the_draft():
    sampler = sampler_for({"forced_token_ids": (9, 30)})
    (draft,) = drafts_of(sampler, [DraftRequest(0, PROMPT, 3, "rejection")], rows_of(3))
    assert draft.tokens[:2] == [9, 30]
    assert draft.q is not None
    assert draft.q[:2].nonzero().tolist() == [[0, 9], [1, 30]]


@pytest.mark.parametrize("rule", ["exact", *DRAWN])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_unusable_logits_end_the_drafts_of_one_ask_alone(rule, bad):
    asks = [DraftRequest(slot, PROMPT, 3, rule) for slot in range(2)]
    logits = rows_of(3, 2)
    _, good = drafts_of(sampler_for({}, {}), asks, logits)
    for at in (0, 1):
        broken = logits.clone()
        broken[at, 0] = bad
        ended, whole = drafts_of(sampler_for({}, {}), asks, broken)
        assert len(ended.tokens) == at
        assert ended.q is None if rule == "exact" or at == 0 else len(ended.q) == at
        assert whole.tokens == good.tokens


@pytest.mark.parametrize("rule", ["exact", "rejection"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_vocabulary_of_another_size(rule, dtype):
    """Padding is never drafted, ids that the drafter lacks neither; q has the target's width."""
    logits = rows_of(3).to(dtype)
    wide = torch.cat([logits, torch.full((3, 1, 24), 50.0, dtype=dtype)], -1)
    ask = DraftRequest(0, PROMPT, 3, rule)
    assert drafts_of(sampler_for({}), [ask], wide)[0].tokens == drafts_of(sampler_for({}), [ask], logits)[0].tokens
    (narrow,) = drafts_of(sampler_for({"temperature": 9.0}), [ask], logits[..., :10])
    assert max(narrow.tokens) < 10
    assert narrow.q is None if rule == "exact" else narrow.q.shape == (3, V)
    assert fit_vocabulary(logits[0], V).data_ptr() == logits.data_ptr()


def test_different_counts_and_rules_together_are_what_they_are_alone():
    fields = ({"temperature": 0.8}, {"temperature": 0.0}, {"top_p": 0.9, "presence_penalty": 0.5}, {"top_k": 5})
    asks = [
        DraftRequest(0, PROMPT, 4),
        DraftRequest(1, PROMPT, 2, "block"),
        DraftRequest(2, PROMPT, 5, "rejection"),
        DraftRequest(3, PROMPT, 1, "exact"),
    ]
    logits = rows_of(5, 4)
    together = drafts_of(sampler_for(*fields), asks, logits)
    for i, ask in enumerate(asks):
        with DraftSampler(sampler_for(*fields)).start([ask]) as draft_batch:
            for step in logits[: ask.count]:
                draft_batch.sample(step[i : i + 1], [0])
            (alone,) = draft_batch.drafts()
        assert together[i].tokens == alone.tokens
        assert len(alone.tokens) == ask.count
        assert alone.q is None or torch.equal(together[i].q, alone.q)
    assert [draft.q is None for draft in together] == [True, True, False, True]


def test_what_has_not_been_fed():
    with DraftSampler(sampler_for({})).start([DraftRequest(0, PROMPT, 4)]) as draft_batch:
        for row in rows_of(2):
            draft_batch.sample(row, [0])
        a, b = draft_batch.tokens[0]
        assert draft_batch.slice_tokens(0, 2) == [3, 7, a, b]
        assert draft_batch.slice_tokens(0, 4) == [a, b]
        assert draft_batch.slice_tokens(0, 5) == [b]


def test_an_empty_slot_is_refused():
    with (
        pytest.raises(ValueError, match="slot 1"),
        DraftSampler(Sampler(Slots(2, V))).start([DraftRequest(1, PROMPT, 1)]),
    ):
        pass


def test_scores_are_computed_only_where_they_are_read(monkeypatch):
    """A score is the largest probability of its row, whatever was drawn."""
    logits, ask = rows_of(3), DraftRequest(0, PROMPT, 3)
    (draft,) = drafts_of(sampler_for(PARAMS["plain"]), [ask], logits)
    assert draft.scores == pytest.approx(logits[:, 0].softmax(1).amax(1).tolist())
    monkeypatch.setattr(draft_sampler, "score_rows", lambda logits: pytest.fail("nobody reads scores"))
    for scored, own in ((False, None), (False, [0.5]), (True, [0.5])):
        with DraftSampler(sampler_for(PARAMS["plain"]), scored=scored).start([ask]) as draft_batch:
            for step in logits:
                draft_batch.sample(step, [0], own)
            assert draft_batch.drafts() == [replace(draft, scores=[0.5] * 3 if scored else [])]
