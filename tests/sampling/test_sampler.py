"""The sampler against the float64 oracle: kept sets, probabilities, the token a seed draws; and that neighbours don't
matter."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from examples import examples
from field_examples import DRAWN
from field_examples import example as example_of
from oracles import brute
from tailrace.kernels.status import EMPTY, INF, NAN, OK
from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling import Rows, Sampler, Slots, request_key
from tailrace.sampling.pipeline import REFINEMENTS
from tailrace.sampling.reference import BadRowError, compute_distribution

V = 61
EOS = 60


def slots_with(*entries: tuple[SamplingParams, int, list[int], list[int]], vocab: int = V) -> Slots:
    slots = Slots(max(8, len(entries)), vocab)
    for slot, (params, key, prompt, output) in enumerate(entries):
        slots.add(
            slot,
            params,
            key=key,
            prompt=prompt,
            output=output,
            eos_token_ids=[vocab - 1],
            handled_by_caller=("seed", "stop_token_ids"),
        )
    return slots


def ask_of(params: SamplingParams, vocab: int = V, key: int = 0, position: int = 0) -> brute.Ask:
    eos = [] if params.ignore_eos else [vocab - 1]
    same = {name: getattr(params, name) for name in brute.Ask.__dataclass_fields__ if hasattr(params, name)}
    return brute.Ask(
        **same
        | {
            "top_k": max(0, params.top_k),
            "top_n_sigma": max(0.0, params.top_n_sigma),
            "mirostat_mu": 2 * params.mirostat_tau,
            "enders": [*eos, *params.stop_token_ids],
            "eos": [vocab - 1],
            "key": key,
            "position": position,
        }
    )


def draw(slots: Slots, logits: torch.Tensor, position: int = 9) -> list[int]:
    n = logits.shape[0]
    return Sampler(slots)(logits, Rows.plain(list(range(n)), list(range(n)), [position] * n)).token_ids[:, 0].tolist()


ids = st.integers(0, V - 1)
few = st.integers(0, 9)
FIELDS = {
    "temperature": st.sampled_from([0.0, 1.0, 0.7, 1.8, 1e-3]),
    "top_k": st.sampled_from([0, -1, 1, 2, 7, 60, 61, 1000]),
    "top_p": st.sampled_from([1.0, 0.0, 0.3, 0.9, 0.999]),
    "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    "top_a": st.sampled_from([0.0, 0.2, 1.0]),
    "typical_p": st.sampled_from([1.0, 0.0, 0.3, 0.9]),
    "tfs_z": st.sampled_from([1.0, 0.0, 0.5, 0.95]),
    "epsilon_cutoff": st.sampled_from([0.0, 0.01, 0.3]),
    "eta_cutoff": st.sampled_from([0.0, 0.01, 0.3]),
    "top_n_sigma": st.sampled_from([0.0, -1.0, 0.5, 1.5]),
    "top_h": st.sampled_from([0.0, 0.3, 1.0]),
    "p_less": st.booleans(),
    "p_less_norm": st.booleans(),
    "min_k": st.booleans(),
    "min_k_tau": st.sampled_from([0.0, 3.0, 200.0]),
    "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
    "smoothing_factor": st.sampled_from([0.0, 0.3]),
    "dynatemp_range": st.sampled_from([0.0, 0.4]),
    "mirostat": st.sampled_from([0, 1, 2]),
    "adaptive_target": st.sampled_from([-1.0, 0.3]),
    "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
    "presence_penalty": st.sampled_from([0.0, 0.6, -0.5]),
    "frequency_penalty": st.sampled_from([0.0, 0.4, -0.2]),
    "penalty_last_n": st.sampled_from([-1, 0, 3]),
    "repetition_scope": st.sampled_from(["both", "prompt", "output"]),
    "penalty_scope": st.sampled_from(["output", "prompt", "both"]),
    "dry_multiplier": st.sampled_from([0.0, 0.8]),
    "dry_allowed_length": st.sampled_from([1, 2]),
    "dry_penalty_last_n": st.sampled_from([-1, 4]),
    "dry_sequence_breakers": st.sampled_from([(), (3,)]),
    "no_repeat_ngram_size": st.sampled_from([0, 1, 2, 3]),
    "encoder_no_repeat_ngram_size": st.sampled_from([0, 1, 2, 3]),
    "encoder_repetition_penalty": st.sampled_from([1.0, 1.4, 0.7]),
    "exponential_decay_length_penalty": st.sampled_from([None, (0, 1.5), (2, 1.1), (1, 0.8)]),
    "normalize_logits": st.booleans(),
    "logit_bias": st.dictionaries(ids, st.sampled_from([-5.0, 2.0, 100.0]), max_size=3),
    "sequence_bias": st.lists(
        st.tuples(st.lists(few, min_size=1, max_size=3).map(tuple), st.just(2.5)), max_size=2
    ).map(tuple),
    "allowed_token_ids": st.none() | st.lists(ids, min_size=3, max_size=20).map(tuple),
    "bad_words": st.lists(st.lists(few, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    "min_tokens": st.sampled_from([0, 2, 5]),
    "stop_token_ids": st.lists(ids, max_size=2).map(tuple),
    "sampler_order": st.sampled_from([(), ("top_p", "min_p", "temperature"), ("typical_p", "xtc", "top_k")]),
}
for name in brute.Ask.__dataclass_fields__.keys() & DRAWN.keys() - FIELDS.keys():
    FIELDS[name] = st.sampled_from([DRAWN[name].default, example_of(DRAWN[name])])
KNOBS = [name for name in FIELDS if name not in ("temperature", "sampler_order")]


def test_the_oracle_has_every_method_in_the_same_order():
    of_state = {"mirostat_tau", "mirostat_eta", "adaptive_decay"}  # Ask has what they have made
    assert DRAWN.keys() - brute.Ask.__dataclass_fields__.keys() == {"processors", "watermark"} | of_state
    assert list(brute.REFINEMENTS) == [name for name in REFINEMENTS if name != "synthid"]


@st.composite
def params(draw) -> SamplingParams:
    """A temperature, an order, and one to five other knobs; combinations that are refused are drawn again."""
    names = draw(st.lists(st.sampled_from(KNOBS), min_size=1, max_size=5, unique=True))
    fields = {name: draw(FIELDS[name]) for name in ("temperature", "sampler_order", *names)}
    try:
        return SamplingParams(**fields)
    except ValueError:
        assume(False)
        raise


def logits_of(kind: str, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    row = torch.randn(V, generator=rng) * 3
    if kind == "ties":
        row = (row / 2).round() * 2
    elif kind == "flat":
        row = torch.zeros(V)
    elif kind == "peaked":
        row[seed % V] = 60.0
    elif kind == "holes":
        row[torch.rand(V, generator=rng) < 0.4] = float("-inf")
        row[3] = 1.0
    elif kind == "bf16":
        row = row.bfloat16().float()
    elif kind == "huge":
        row = row * 1e4
    return row


KINDS = ["random", "ties", "flat", "peaked", "holes", "bf16", "huge"]


TOKENS = st.lists(few, max_size=9)


@settings(max_examples=examples(1500), deadline=None)
@given(params(), st.sampled_from(KINDS), st.integers(0, 50), TOKENS, TOKENS)
@example(SamplingParams(typical_p=0.0, top_n_sigma=0.5, sampler_order=("typical_p",)), "random", 0, [], [])
def test_kept_sets_probabilities_and_draws_are_the_oracles(params, kind, seed, prompt, output):
    row = logits_of(kind, seed)
    slots = slots_with((params, seed, prompt, output))
    position = len(prompt) + len(output)
    ask = ask_of(params, key=seed, position=position)
    edited = brute.edit(row.double().tolist(), ask, prompt, output)
    rows = Rows.plain([0], [0], [position])
    kernel, reference = (Sampler(slots, backend)(row[None], rows) for backend in ("cpu", "reference"))
    if all(x == brute.NONE for x in edited):
        assert kernel.status.tolist() == reference.status.tolist() == [EMPTY]
        return
    token = int(kernel.token_ids[0, 0])
    if params.greedy:
        assert token == int(reference.token_ids[0, 0])
        assert edited[token] >= max(edited) - 1e-4 * max(1.0, abs(max(edited)))
        return
    candidates = compute_distribution(row, slots[0], position)
    alive = brute.refine(edited, ask)
    got, wanted = candidates.ids.tolist(), sorted(alive)
    if got != wanted:  # float32 logits may fall on the other side of a threshold that they all but touch
        assert near_a_threshold(edited, ask, set(got) ^ set(wanted))
        return
    expected = brute.softmax(alive)
    for i, p in zip(got, candidates.probabilities().tolist(), strict=True):
        assert abs(p - expected[i]) < 1e-5
    marks = brute.scores(alive, seed, position)
    tolerance = 1e-3 * max(1.0, abs(max(alive.values())))
    for sampled in (kernel, reference):
        drawn = int(sampled.token_ids[0, 0])
        assert drawn in marks or near_a_threshold(edited, ask, {drawn})
        assert drawn not in marks or marks[drawn] >= max(marks.values()) - tolerance


SHIFTED = (
    "top_p",
    "min_p",
    "typical_p",
    "tfs_z",
    "top_a",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_n_sigma",
    "top_h",
    "xtc_threshold",
    "mirostat_mu",
)


def near_a_threshold(edited: list[float], ask: brute.Ask, disputed: set[int]) -> bool:
    """Whether a shift of the knobs within float32's rounding explains a different kept set."""
    plain = set(brute.refine(edited, ask))
    for shift in (-2e-5, 2e-5):
        moved = brute.Ask(**ask.__dict__)
        for name in SHIFTED:
            setattr(moved, name, min(max(0.0, getattr(ask, name) * (1 + shift)), 1.0 if name == "top_p" else math.inf))
        if disputed <= (set(brute.refine(edited, moved)) ^ plain):
            return True
    values = sorted(edited[i] for i in disputed if edited[i] != brute.NONE)
    return len(values) > 1 and values[-1] - values[0] <= 1e-5 * max(1.0, abs(values[-1]))


# ---- neighbours


def company(seed: int) -> list[tuple[SamplingParams, int, list[int], list[int]]]:
    rng = random.Random(seed)
    make = lambda **fields: SamplingParams(**fields)  # noqa: E731
    params = [
        make(temperature=0.0),
        make(),
        make(temperature=0.8, top_p=0.9, seed=3),
        make(top_k=5, min_p=0.1),
        make(temperature=1.3, repetition_penalty=1.2, presence_penalty=0.5, logprobs=4),
        make(temperature=0.0, logprobs=2),
        make(allowed_token_ids=(1, 2, 3)),
        make(logit_bias={5: 3.0}, min_tokens=9),
    ]
    return [(p, rng.randrange(2**60), [rng.randrange(V) for _ in range(5)], [1, 2]) for p in params]


def test_a_row_is_the_same_alone_in_any_slot_order_and_company():
    entries = company(1)
    logits = torch.stack([logits_of(kind, 7) for kind in [*KINDS, "random"]])
    together = draw(slots_with(*entries), logits)
    for i, entry in enumerate(entries):
        assert draw(slots_with(entry), logits[i : i + 1]) == [together[i]]
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    shuffled = draw(slots_with(*(entries[i] for i in order)), logits[order])
    assert [shuffled[order.index(i)] for i in range(8)] == together
    half = draw(slots_with(*entries), logits.double().float().contiguous())
    assert half == together


def test_the_container_may_be_bf16_and_strided_and_is_not_modified():
    entries = company(2)
    logits = torch.stack([logits_of("bf16", s) for s in range(8)])
    wide = torch.zeros(8, V + 9, dtype=torch.bfloat16)
    wide[:, 4 : V + 4] = logits.bfloat16()
    before = wide.clone()
    assert draw(slots_with(*entries), wide[:, 4 : V + 4]) == draw(slots_with(*entries), logits)
    assert torch.equal(wide, before)


def test_noise_shared_between_rows_would_be_seen():
    """The planted fault: rows that share their key draw the same tokens everywhere."""
    flat = torch.zeros(8, V)
    same = [(SamplingParams(), 5, [], []) for _ in range(8)]
    assert len(set(draw(slots_with(*same), flat))) == 1
    apart = [(SamplingParams(), request_key(5, i), [], []) for i in range(8)]
    assert len(set(draw(slots_with(*apart), flat))) > 4


def test_children_share_logits_and_draw_apart():
    slots = Slots(4, V)
    slots.add(0, SamplingParams(seed=1), key=request_key(1, 0), prompt=[1])
    for i in (1, 2):
        slots.fork(0, i, key=request_key(1, i))
    flat = torch.zeros(1, V)
    rows = Rows.plain([0, 1, 2], [0, 0, 0], [1, 1, 1])
    first = Sampler(slots)(flat, rows).token_ids[:, 0].tolist()
    assert len(set(first)) == 3
    assert Sampler(slots)(flat, rows).token_ids[:, 0].tolist() == first
    assert request_key(7, 1) != request_key(8, 0)
    assert request_key(None, 0) != request_key(None, 0)


# ---- bad rows


def test_bad_rows_are_flagged_and_neighbours_are_not_touched():
    rows = torch.randn(8, V, generator=torch.Generator().manual_seed(1))
    entries = [(SamplingParams(seed=1), i, [], []) for i in range(8)]
    good = draw(slots_with(*entries), rows)
    bad = rows.clone()
    bad[1], bad[2, 5], bad[3, 5] = float("-inf"), float("nan"), float("inf")
    entries[4] = (SamplingParams(allowed_token_ids=(7,), bad_words=((7,),)), 4, [], [])
    sampled = Sampler(slots_with(*entries))(bad, Rows.plain(list(range(8)), list(range(8)), [9] * 8))
    assert sampled.status.tolist() == [OK, EMPTY, NAN, INF, EMPTY, OK, OK, OK]
    assert sampled.num_tokens.tolist() == [1, 0, 0, 0, 0, 1, 1, 1]
    got = sampled.token_ids[:, 0].tolist()
    assert got[1:5] == [-1] * 4
    assert [got[i] for i in (0, 5, 6, 7)] == [good[i] for i in (0, 5, 6, 7)]


# ---- edges, by the cases that broke others


@pytest.mark.parametrize("temperature", [1e-45, 1e-7])
def test_case_04_tiny_temperatures_are_greedy_never_token_0(temperature):
    row = torch.zeros(1, V)
    row[0, 17] = 0.5
    assert draw(slots_with((SamplingParams(temperature=temperature), 1, [], [])), row) == [17]
    row[0, 30] = 0.5  # of equal ones either may be drawn
    seen = {draw(slots_with((SamplingParams(temperature=temperature), key, [], [])), row)[0] for key in range(40)}
    assert seen == {17, 30}


def kept(row: torch.Tensor, **fields) -> list[int]:
    return compute_distribution(row, slots_with((SamplingParams(**fields), 0, [], []), vocab=len(row))[0]).ids.tolist()


def test_case_03_top_p_near_one_and_zero():
    flat = torch.zeros(V)
    assert kept(flat, top_p=1 - 1e-7) == list(range(V))
    assert kept(flat, top_p=0.0) == [0]
    assert kept(torch.arange(V).float(), top_p=0.0) == [V - 1]


def test_case_06_ties_at_the_boundary_go_to_the_smaller_id():
    row = torch.tensor([1.0, 5.0, 3.0, 3.0, 3.0, 0.0])
    assert kept(row, top_k=3) == [1, 2, 3]
    assert kept(torch.zeros(6), top_k=4) == [0, 1, 2, 3]
    assert kept(torch.zeros(10), top_p=0.35) == [0, 1, 2, 3]
    assert kept(row, min_p=1.0) == [1]
    assert kept(torch.zeros(6), min_p=1.0) == list(range(6))


def test_case_07_top_p_takes_its_mass_from_what_top_k_left():
    row = torch.log(torch.tensor([0.1] * 9 + [0.05, 0.05]))
    assert kept(row, top_k=2, top_p=0.5) == [0]  # of the two, each has one half: the first reaches 0.5
    assert kept(row, top_k=2, top_p=0.51) == [0, 1]


def test_case_07_temperature_and_repetition_penalty_act_once():
    row = torch.tensor([2.0, 1.0, 0.0, -1.0])
    p = compute_distribution(row, slots_with((SamplingParams(temperature=0.5), 0, [], []), vocab=4)[0]).probabilities()
    torch.testing.assert_close(p.float(), (row / 0.5).softmax(0))
    params = SamplingParams(repetition_penalty=2.0)
    penalised = compute_distribution(row, slots_with((params, 0, [0, 0, 3], [0]), vocab=4)[0])
    torch.testing.assert_close(penalised.probabilities().float(), torch.tensor([1.0, 1.0, 0.0, -2.0]).softmax(0))


def test_case_09_penalty_scopes():
    """Frequency and presence look at the output alone; repetition also at the prompt, each distinct token once."""
    row = torch.zeros(5)
    params = SamplingParams(frequency_penalty=1.0, presence_penalty=0.5)
    got = compute_distribution(row, slots_with((params, 0, [1, 1, 2], [2, 2, 3]), vocab=5)[0]).raw
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, -2.5, -1.5, 0.0]))


def test_history_follows_the_committed_tokens():
    slots = slots_with((SamplingParams(frequency_penalty=1.0, bad_words=((3, 4),)), 0, [3], []), vocab=6)
    row = torch.zeros(6)
    assert 4 not in compute_distribution(row, slots[0]).ids.tolist()
    for token in (2, 2, 5) * 20:
        slots.commit([0], [[token]])
    got = compute_distribution(row, slots[0])
    assert got.ids.tolist() == list(range(6))
    torch.testing.assert_close(got.logits, torch.tensor([0.0, 0.0, -40.0, 0.0, 0.0, -20.0]))


def test_slots_are_checked():
    slots = slots_with((SamplingParams(), 0, [], []))
    with pytest.raises(ValueError, match="slot 0 is taken"):
        slots.add(0, SamplingParams(), key=0, prompt=[])
    with pytest.raises(ValueError, match="slot 7 is empty"):
        slots.remove(7)
    with pytest.raises(ValueError, match="stop_token_ids"):
        slots.add(1, SamplingParams(stop_token_ids=(V,)), key=0, prompt=[])
    with pytest.raises(ValueError, match="61 columns"):
        draw(slots, torch.zeros(1, 5))
    with pytest.raises(ValueError, match="source must be in"):
        Sampler(slots)(torch.zeros(1, V), Rows.plain([0], [3], [1]))


def bad_rows(**changed) -> Rows:
    """Two requests, the first with a draft, as Rows.drafted makes them, but for what is changed."""
    good = Rows.drafted([0, 1], [5, 7], [[3], []])
    fields = {name: getattr(good, name) for name in ("slot", "source", "position", "start", "draft", "width")}
    return Rows(**fields | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": torch.tensor([0, 1, 3])}, "source must be in 0 … 2, got 3"),
        ({"source": torch.tensor([0, 1])}, "source, position and draft must have 3 entries"),
        ({"position": torch.tensor([5, -1, 7])}, "position must be in 0"),
        ({"slot": torch.tensor([0, 0, 9])}, "slot must be in 0 … 2, got 9"),
        ({"slot": torch.tensor([2, 2, 1])}, "slot 2 is empty"),
        ({"draft": torch.tensor([V, -1, -1])}, f"drafts must be in 0 … {V - 1}, got {V}"),
        ({"draft": torch.tensor([-1, -1, -1])}, "drafts must be in"),
        ({"draft": torch.tensor([3, 3, -1])}, "the draft of a bonus row"),
        ({"width": 1}, "the rows of a request must be in 1 … 1, got 2"),
        ({"start": torch.tensor([1, 2, 3])}, r"start\[0\]"),
        ({"start": torch.tensor([0, 2, 4])}, r"start\[N\]"),
        ({"start": torch.tensor([0, 0, 3])}, "the rows of a request"),
        ({"start": torch.tensor([], dtype=torch.int64)}, "start at least one"),
        ({"rule": torch.tensor([0, 7], dtype=torch.int32)}, "rule must be in 0 … 3, got 7"),
        ({"rule": torch.tensor([0], dtype=torch.int32)}, "rule must have 2 entries"),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_rows_are_checked(backend, changed, message):
    slots = Slots(3, V)
    for slot in (0, 1):
        slots.add(slot, SamplingParams(), key=slot, prompt=[1])
    sampler = Sampler(slots, backend)
    assert sampler(torch.zeros(3, V), bad_rows()).num_tokens.min() >= 1
    with pytest.raises(ValueError, match=message):
        sampler(torch.zeros(3, V), bad_rows(**changed))


# ---- logprobs


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_are_those_of_the_distribution_they_name(mode):
    row = logits_of("ties", 3)
    params = SamplingParams(temperature=0.7, top_k=6, logit_bias={4: 2.0}, logprobs=9, logprobs_mode=mode)
    slots = slots_with((params, 11, [], []))
    sampled = Sampler(slots)(row[None], Rows.plain([0], [0], [4]))
    entry, token = sampled.logprobs[0][0], int(sampled.token_ids[0, 0])
    values = row.double().tolist()
    alive = (
        dict(enumerate(values))
        if mode == "raw"
        else brute.refine(brute.edit(values, ask_of(params), [], []), ask_of(params))
    )
    p = brute.softmax(alive)
    order = brute.descending(alive) + [i for i in range(V) if i not in alive]
    assert entry.rank == order.index(token) + 1
    assert entry.top_ids == order[:9]
    assert math.isclose(entry.logprob, math.log(p[token]), abs_tol=1e-5)
    expected = [math.log(p[i]) if i in p else float("-inf") for i in order[:9]]
    assert entry.top_logprobs == pytest.approx(expected, abs=1e-5)


def test_logprobs_are_given_only_to_those_who_ask():
    slots = slots_with(
        (SamplingParams(temperature=0.0), 0, [], []), (SamplingParams(temperature=0.0, logprobs=0), 0, [], [])
    )
    sampled = Sampler(slots)(torch.randn(2, V), Rows.plain([0, 1], [0, 1], [1, 1]))
    assert sampled.logprobs[0] is None
    assert sampled.logprobs[1][0].top_ids == []
    assert sampled.logprobs[1][0].rank == 1


def test_an_edit_that_overflows_is_an_error_not_a_missing_token():
    params = SamplingParams(repetition_penalty=1e-3, temperature=0.0)
    slots = slots_with((params, 0, [0], []), vocab=3)
    row = torch.tensor([1e37, 1.0, 0.0])
    with pytest.raises(BadRowError) as bad:
        compute_distribution(row, slots[0])
    assert bad.value.status == INF
    assert Sampler(slots)(row[None], Rows.plain([0], [0], [1])).status.tolist() == [INF]


@pytest.mark.parametrize("temperature", [0.0, 1e-3])
def test_an_overflow_of_a_banned_token_does_not_matter(temperature):
    params = SamplingParams(repetition_penalty=1e-3, temperature=temperature, bad_words=((0,),))
    slots = slots_with((params, 0, [0], []), vocab=3)
    row = torch.tensor([[1e37, 1.0, 0.0]])
    for backend in ("cpu", "reference"):
        sampled = Sampler(slots, backend)(row, Rows.plain([0], [0], [1]))
        assert (sampled.status.tolist(), sampled.token_ids.tolist()) == ([0], [[1]])


def test_the_time_of_what_may_be_dear_is_noted():
    """And nobody else's: the engine makes such requests take turns (tests/engine/test_costs.py)."""
    slots = Slots(3, 5000)
    for slot, fields in enumerate(({"tfs_z": 0.5}, {"top_p": 0.9}, {"watermark": Watermark(kind="synthid", key=1)})):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[1, 2, 3, 4, 5])
    Sampler(slots)(torch.randn(3, 5000), Rows.plain(range(3), range(3), [5] * 3))
    took = [slots[slot].took_s for slot in range(3)]
    assert took[0] > 0 < took[2] < 10
    assert took[1] == 0
