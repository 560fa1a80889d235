"""Drawn drafts as the CPU kernels make them: q is the reference's distribution, the token is drawn from exactly that q
with noise of its own, and memory that is used again holds nothing from before. And that planted faults are seen."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from scipy import stats

from tailrace import _cpu, kernels
from tailrace.drafting.base import Draft, DraftRequest
from tailrace.drafting.draft_sampler import DraftBatch, DraftSampler, draw_by_inversion, noise_of
from tailrace.kernels.constants import FALLS_BACK
from tailrace.kernels.cpu.proposal_buffers import ProposalBuffer, ProposalBuffers
from tailrace.kernels.cpu.sample import CPUStep
from tailrace.kernels.status import OK
from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.reference import compute_distribution
from tailrace.sampling.slot import Slot

ALPHA = 1e-6
PROMPT = [3, 5, 3, 7]
WIDE = 1000  # no multiple of a block
FIELDS = {
    "nothing": {},
    "temperature": {"temperature": 0.7},
    "cold": {"temperature": 1e-3},
    "hot": {"temperature": 20.0},
    "top-k": {"top_k": 9},
    "top-p": {"top_p": 0.8, "temperature": 1.4},
    "flat top-p": {"top_p": 0.99, "temperature": 9.0},
    "min-p": {"min_p": 0.03},
    "joint": {"temperature": 1.5, "top_k": 60, "top_p": 0.9, "min_p": 0.01},
    "typical": {"typical_p": 0.7},
    "top-a": {"top_a": 0.3},
    "epsilon and eta": {"epsilon_cutoff": 1e-3, "eta_cutoff": 2e-3},
    "sigma": {"top_n_sigma": 1.5},
    "XTC": {"xtc_probability": 0.5, "xtc_threshold": 0.02},
    "dynatemp": {"dynatemp_range": 0.5},
    "penalties": {"repetition_penalty": 1.8, "presence_penalty": 1.0, "frequency_penalty": 0.7},
    "window": {"repetition_penalty": 3.0, "penalty_last_n": 3, "top_p": 0.9},
    "bias": {"logit_bias": {4: 9.0, 5: -9.0, 30: 2.5}, "temperature": 0.8},
    "allowed": {"allowed_token_ids": [2, 8, 30]},
    "bad words": {"bad_words": ((5,), (3, 7, 9))},
    "DRY": {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    "min_tokens": {"min_tokens": 2, "stop_token_ids": [1, 2, 3, 4]},
    "forced": {"forced_token_ids": (9, 30)},
    "logprobs": {"logprobs": 3, "logprobs_mode": "processed", "top_k": 20},
    "tail-free": {"tfs_z": 0.95},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "adaptive-p": {"adaptive_target": 0.3, "min_p": 0.01},
    "SynthID": {"watermark": Watermark(kind="synthid", key=5, context=2), "top_k": 50},
}


def sampler_for(*fields: dict, vocab: int = WIDE) -> Sampler:
    slots = Slots(len(fields), vocab)
    for slot, params in enumerate(fields):
        slots.add(slot, SamplingParams(**params), key=11 + slot, prompt=PROMPT)
    return Sampler(slots)


def rows_of(steps: int, vocab: int = WIDE, seed: int = 5) -> torch.Tensor:
    """Logits [steps, 1, V]."""
    return torch.randn(steps, 1, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def expected(row: torch.Tensor, slot: Slot, position: int) -> torch.Tensor:
    """The reference's q, float64 [V]."""
    q = torch.zeros(row.numel(), dtype=torch.float64)
    if slot.forced is not None:
        q[slot.forced] = 1.0
    else:
        candidates = compute_distribution(row.float(), slot, position)
        q[candidates.ids] = candidates.probabilities()
    return q


def walk(draft_batch: DraftBatch, logits: torch.Tensor, length: int = len(PROMPT)) -> Iterator[torch.Tensor]:
    """Makes the drafts of the only ask; the q that each should have."""
    for step, row in enumerate(logits):
        yield expected(row[0], draft_batch.slots[0], length + step)
        draft_batch.sample(row, [0])


def by_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes the way in torch."""
    monkeypatch.setattr(DraftBatch, "_sample_from_q_row_by_row", None)


# ---- q


@pytest.mark.few(28)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FIELDS)
def test_q_is_the_references_distribution(name, dtype, monkeypatch):
    """At every draft, those before it counted."""
    by_kernels_alone(monkeypatch)
    for seed in range(4):
        draft_sampler = DraftSampler(sampler_for(FIELDS[name]))
        with draft_sampler.start([DraftRequest(0, PROMPT, 5, "rejection")]) as draft_batch:
            due = list(walk(draft_batch, rows_of(5, seed=seed).to(dtype)))
            [draft] = draft_batch.drafts()
        assert draft.q is not None
        torch.testing.assert_close(draft.q.double(), torch.stack(due), atol=2e-6, rtol=1e-5)
        assert float((draft.q.double().sum(1) - 1).abs().max()) <= 1e-6
        assert ((draft.q > 0) <= (torch.stack(due) > 0)).all()
        for token, q in zip(draft.tokens, draft.q, strict=True):
            assert q[token] > 0


@pytest.mark.parametrize("fields", [{}, {"temperature": 5.0}, {"top_p": 0.95}, {"top_p": 0.95, "temperature": 5.0}])
def test_q_over_a_large_vocabulary(fields):
    vocab = 128_256
    sampler, row = sampler_for(fields, vocab=vocab), rows_of(1, vocab)[0]
    with DraftSampler(sampler).start([DraftRequest(0, PROMPT, 1, "block")]) as draft_batch:
        draft_batch.sample(row, [0])
        [draft] = draft_batch.drafts()
    assert draft.q is not None
    due = expected(row[0], sampler.slots[0], len(PROMPT))
    assert float((draft.q[0].double() - due).abs().sum()) <= 1e-5
    assert abs(float(draft.q[0].double().sum()) - 1) <= 1e-6


def test_another_distribution_is_seen():
    """A draft that is not counted, and a coin of another position."""
    for fields in (FIELDS["penalties"], FIELDS["XTC"]):
        apart = 0.0
        for length in range(4, 12):
            with DraftSampler(sampler_for(fields)).start(
                [DraftRequest(0, [1] * length, 2, "rejection")]
            ) as draft_batch:
                rows = rows_of(2, seed=length)
                before = expected(rows[1, 0], draft_batch.slots[0], length)
                list(walk(draft_batch, rows, length))
                [draft] = draft_batch.drafts()
            assert draft.q is not None
            apart = max(apart, float((draft.q[1] - before).abs().max()))
        assert apart > 1e-3


def test_the_way_by_the_reference_agrees():
    """The tokens too."""
    for name in FIELDS:
        found: list[Draft] = []
        for backend in (None, "reference"):
            sampler = Sampler(sampler_for(FIELDS[name]).slots, backend)
            with DraftSampler(sampler).start([DraftRequest(0, PROMPT, 4, "rejection")]) as draft_batch:
                for row in rows_of(4):
                    draft_batch.sample(row, [0])
                found += draft_batch.drafts()
        mine, other = found
        assert mine.tokens == other.tokens
        assert mine.q is not None
        assert other.q is not None
        torch.testing.assert_close(mine.q, other.q, atol=2e-6, rtol=1e-5)


# ---- the token


def test_the_token_is_where_the_number_lies_in_q():
    for fields, length in product(FIELDS.values(), (1, 6)):
        with DraftSampler(sampler_for(fields)).start([DraftRequest(0, [1] * length, 3, "rejection")]) as draft_batch:
            for row in rows_of(3, seed=length):
                draft_batch.sample(row, [0])
            [draft] = draft_batch.drafts()
        assert draft.q is not None
        if draft_batch.slots[0].params.forced_token_ids:
            continue
        numbers = [kernels.uniform(11, *noise_of(length, step)) for step in range(3)]
        assert draft.tokens == [draw_by_inversion(q, u) for q, u in zip(draft.q, numbers, strict=True)]


def drafts_at_once(fields: dict, count: int) -> tuple[list[int], torch.Tensor]:
    """A draft for each of so many keys, all from one row of logits, and their q."""
    slots = Slots(count, WIDE)
    for slot in range(count):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[0])
    logits = (rows_of(1)[0] / 2).expand(count, WIDE)
    with DraftSampler(Sampler(slots)).start(
        [DraftRequest(slot, [0], 1, "rejection") for slot in range(count)]
    ) as draft_batch:
        draft_batch.sample(logits, range(count))
        drafts = draft_batch.drafts()
    assert drafts[0].q is not None
    return [draft.tokens[0] for draft in drafts], drafts[0].q[0]


def p_value(tokens: list[int], q: torch.Tensor) -> float:
    """Of tokens drawn from q, if they were."""
    found, due = Counter(tokens), (q.double() * len(tokens)).tolist()
    many = [i for i, e in enumerate(due) if e >= 8]
    pairs = [(found[i], due[i]) for i in many]
    if (rest := len(tokens) - sum(e for _, e in pairs)) > 8:
        pairs.append((len(tokens) - sum(n for n, _ in pairs), rest))
    return float(stats.chi2.sf(sum((n - e) ** 2 / e for n, e in pairs), len(pairs) - 1))


# one block of candidates, some, and the whole row
@pytest.mark.few(1)
@pytest.mark.parametrize("fields", [{"top_k": 40}, {"top_p": 0.98}, {"temperature": 0.8}])
def test_tokens_follow_q(fields):
    tokens, q = drafts_at_once(fields, 6000)
    assert p_value(tokens, q) > ALPHA
    assert float(q[tokens].min()) > 0
    # planted: the neighbour's mass, a distribution a little warmer, and an eighth of them the same
    assert p_value(tokens, q.roll(1)) < ALPHA
    assert p_value(tokens, q**0.6 / (q**0.6).sum()) < ALPHA
    assert p_value(tokens[: len(tokens) * 7 // 8] + tokens[:1] * (len(tokens) // 8), q) < ALPHA


# ---- noise


def test_no_two_places_or_steps_share_noise():
    """Nor do they share it with what the sampler draws: 0 … 3, and from 64 on block verification."""
    places = [noise_of(begin, step) for begin, step in product(range(1, 20), range(32))]
    assert len(set(places)) == len(places)
    assert {stream for _, stream in places} <= set(range(4, 64))


def test_tokens_differ_between_places_and_steps():
    """From flat rows, as often as chance has it."""
    sampler, row = sampler_for({}, vocab=64), torch.zeros(1, 64)
    sequences = []
    for length in range(1, 41):
        with DraftSampler(sampler).start([DraftRequest(0, [1] * length, 8, "rejection")]) as draft_batch:
            for _ in range(8):
                draft_batch.sample(row, [0])
        sequences.append(draft_batch.tokens[0])
    tokens = torch.tensor(sequences)
    same_place = float((tokens[1:] == tokens[:-1]).float().mean())
    shifted = float((tokens[1:, :-1] == tokens[:-1, 1:]).float().mean())  # the same position of the text
    within = float((tokens[:, 1:] == tokens[:, :-1]).float().mean())
    assert max(same_place, shifted, within) < 0.08  # 1/64, ± 0.007


# ---- memory and rows


@pytest.mark.long
def test_memory_that_is_used_again_holds_nothing_from_before():
    """Dense, few, many, one: in whatever order."""
    sampler = sampler_for({}, {"top_k": 5}, {"top_p": 0.999, "temperature": 9.0}, {"forced_token_ids": (9, 30)})
    draft_sampler = DraftSampler(sampler)
    lent = set()
    for turn, slot in enumerate([0, 1, 2, 1, 3, 0, 3, 1, 1, 2, 3]):
        with draft_sampler.start([DraftRequest(slot, PROMPT, 2, "rejection")]) as draft_batch:
            due = list(walk(draft_batch, rows_of(2, seed=turn)))
            [draft] = draft_batch.drafts()
        assert draft.q is not None
        torch.testing.assert_close(draft.q.double(), torch.stack(due), atol=2e-6, rtol=1e-5)
        lent.add(draft.q.data_ptr())
        del draft, draft_batch
        gc.collect()
    assert len(lent) == 1


def test_what_is_left_in_used_memory_is_seen():
    """Planted: the note says that the row is empty."""
    sampler = sampler_for({"top_k": 5})
    step = CPUStep(rows_of(1)[0], Rows.plain([0], [0], [4]), sampler.backend_for(torch.device("cpu")).programs)
    place = ProposalBuffers(WIDE).acquire(1)
    place.write(0, torch.ones(WIDE))
    step.propose([(4, 16)], [(place, 0)])
    assert int((place.q > 0).sum()) == 5
    place.write(0, torch.ones(WIDE))
    place._notes[0, 0] = 0
    step.propose([(4, 16)], [(place, 0)])
    assert int((place.q > 0).sum()) == WIDE


def test_memory_that_someone_holds_is_not_lent_again():
    buffers = ProposalBuffers(8)
    held = buffers.acquire(3).q[1:2]  # a view keeps it
    gc.collect()
    others = [buffers.acquire(3).q for _ in range(3)]
    spans = [(q.data_ptr(), q.data_ptr() + q.numel() * 4) for q in [held, *others]]
    assert all(a[1] <= b[0] or b[1] <= a[0] for i, a in enumerate(spans) for b in spans[:i])


def kept_beside(bad: float, threads: int) -> tuple[list[int], list[int], list[ProposalBuffer]]:
    """Tokens and status of five rows of which the second and fourth are broken; where their q went."""
    sampler = sampler_for(*[{"top_p": 0.9}] * 4, {"normalize_logits": True})
    logits = rows_of(5)[:, 0].clone()
    logits[1, 17] = bad
    logits[3] = -math.inf
    places = [ProposalBuffers(WIDE).acquire(1) for _ in range(5)]
    for place in places:
        place.write(0, torch.full((WIDE,), 7.0))
    before = _cpu.num_threads()
    kernels.set_num_threads(threads)
    try:
        step = CPUStep(
            logits, Rows.plain(range(5), range(5), [4] * 5), sampler.backend_for(torch.device("cpu")).programs
        )
        out = step.propose([(4, 16)] * 5, [(place, 0) for place in places])
    finally:
        kernels.set_num_threads(before)
    return out.token_ids.tolist(), out.status.tolist(), places


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("threads", [1, 2])
def test_broken_rows_beside_good_ones(bad, threads):
    tokens, status, places = kept_beside(bad, threads)
    assert [at for at, state in enumerate(status) if state == OK] == [0, 2]
    assert status[4] == FALLS_BACK
    assert [tokens[at] for at in (1, 3, 4)] == [-1] * 3
    for at, place in enumerate(places):
        if status[at] == OK:
            assert abs(float(place.q.sum()) - 1) <= 1e-6
            assert place.q[0, tokens[at]] > 0
        else:
            assert (place.q == 7.0).all()


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"forced_token_ids": (9,)}])
def test_one_token_is_one_hot(fields):
    """Greedy ones are not asked for by the draft_sampler; the kernels have them all the same."""
    sampler, logits = sampler_for(fields), rows_of(1)[0]
    step = CPUStep(logits, Rows.plain([0], [0], [4]), sampler.backend_for(torch.device("cpu")).programs)
    place = ProposalBuffers(WIDE).acquire(1)
    [token] = step.propose([(4, 16)], [(place, 0)]).token_ids.tolist()
    assert token == (9 if "forced_token_ids" in fields else int(logits.argmax()))
    assert place.q[0].nonzero().tolist() == [[token]]
    assert float(place.q[0, token]) == 1.0


def test_numbers_that_do_not_fit_are_refused():
    sampler = sampler_for({})
    step = CPUStep(rows_of(1)[0], Rows.plain([0], [0], [4]), sampler.backend_for(torch.device("cpu")).programs)
    for noise, place, row in (
        ([], ProposalBuffers(WIDE).acquire(1), 0),
        ([(4, 16)], ProposalBuffers(WIDE - 1).acquire(1), 0),
        ([(4, 16)], ProposalBuffers(WIDE).acquire(1), 1),
    ):
        with pytest.raises(ValueError, match="1 entries, rows of 1000 tokens"):
            step.propose(noise, [(place, row)])
