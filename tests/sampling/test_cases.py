"""The regression corpus: what broke in other servers, case by case. 03, 04, 06, 07 and 09 are in test_sampler.py, 11 in
tests/engine/test_banned_strings.py, 13 in test_verify.py, 15 and on elsewhere."""

from __future__ import annotations

import time

import pytest
import torch

from field_examples import DRAWN, company, example
from tailrace.errors import ParameterError
from tailrace.kernels.status import EMPTY, INF, NAN, OK
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, request_key, validation
from tailrace.sampling.reference import compute_distribution

V = 700


def logits(rows: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3


def drawn(slots: Slots, rows: torch.Tensor, of: list[int] | None = None, position: int = 5) -> list[int]:
    of = list(range(rows.shape[0])) if of is None else of
    return Sampler(slots)(rows, Rows.plain(of, range(len(of)), [position] * len(of))).token_ids[:, 0].tolist()


def test_case_01_a_seeded_row_is_the_same_beside_unseeded_ones_in_any_order_and_number():
    rows = logits(8)
    slots = Slots(8, V)
    for i in range(8):
        params = (
            SamplingParams(seed=4, top_p=0.9) if i == 3 else SamplingParams(temperature=0.5 + i / 9, min_p=0.01 * i)
        )
        slots.add(i, params, key=request_key(params.seed, 0), prompt=[1])
    token = drawn(slots, rows)[3]
    for order in ([3], [3, 0], [7, 3, 1], [6, 5, 4, 3, 2, 1, 0, 7]):
        assert drawn(slots, rows[order], order)[order.index(3)] == token


def test_case_02_children_of_a_seed_differ_and_come_again_and_without_a_seed_requests_differ():
    keys = [request_key(11, i) for i in range(4)]
    assert keys == [request_key(11, i) for i in range(4)]
    assert len(set(keys)) == 4
    flat = torch.zeros(4, V)
    slots = Slots(8, V)
    for i in range(4):
        slots.add(i, SamplingParams(seed=11), key=keys[i], prompt=[1])
        slots.add(4 + i, SamplingParams(), key=request_key(None, 0), prompt=[1])
    assert len(set(drawn(slots, flat))) > 1
    assert drawn(slots, flat) == drawn(slots, flat)
    assert len(set(drawn(slots, flat, [4, 5, 6, 7]))) > 1


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda row: row.fill_(float("-inf")), EMPTY),
        (lambda row: row.fill_(float("nan")), NAN),
        (lambda row: row.__setitem__(9, float("nan")), NAN),
        (lambda row: row.__setitem__(9, float("inf")), INF),
    ],
)
def test_case_05_a_bad_row_is_its_own_requests_error_alone(spoil, status):
    rows = logits(3)
    slots = Slots(3, V)
    for i in range(3):
        slots.add(i, SamplingParams(top_p=0.9), key=i, prompt=[1])
    before = drawn(slots, rows)
    spoil(rows[1])
    out = Sampler(slots)(rows, Rows.plain([0, 1, 2], [0, 1, 2], [5] * 3))
    assert out.status.tolist() == [OK, status, OK]
    assert [out.token_ids[0, 0], out.token_ids[2, 0]] == [before[0], before[2]]


def test_case_05_all_but_one_masked_is_that_one():
    row = torch.full((1, V), float("-inf"))
    row[0, 123] = -7.0
    for fields in (
        {},
        {"temperature": 0.0},
        {"top_p": 0.5},
        {"typical_p": 0.2},
        {"top_k": 5},
        {"min_p": 1.0},
        {"mirostat": 2},
    ):
        slots = Slots(1, V)
        slots.add(0, SamplingParams(**fields), key=1, prompt=[1])
        assert drawn(slots, row) == [123]


def test_case_08_the_tail_of_a_large_vocabulary_comes_as_often_as_it_should():
    """1e-8 each, 1.3e-3 together: with 24-bit uniforms they come too rarely (test_law has the planted fault)."""
    row = torch.full((1, 131_072), -18.42)
    row[0, 5] = 0.0
    slots = Slots(1, 131_072)
    slots.add(0, SamplingParams(), key=3, prompt=[1])
    out = Sampler(slots)(row, Rows.plain([0] * 2**14, [0] * 2**14, range(2**14)))
    wins = int((out.token_ids != 5).sum())
    assert 3 <= wins <= 50  # 21.5 expected


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words", "forced_token_ids"])
@pytest.mark.parametrize("token", [V, -1, 2**40])
def test_case_10_ids_outside_the_vocabulary_are_refused_by_name(name, token):
    value = {"logit_bias": {token: 1.0}, "bad_words": ((1, token),)}.get(name, (token,))
    with pytest.raises(ParameterError, match=name):
        Slots(1, V).add(0, SamplingParams(**{name: value}), key=1, prompt=[1])


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words", "sequence_bias", "stop"]
)
def test_case_10_a_million_entries_are_refused_quickly(name):
    many = {
        "logit_bias": dict.fromkeys(range(10**6), 1.0),
        "bad_words": ((1,),) * 10**6,
        "sequence_bias": (((1,), 1.0),) * 10**6,
        "stop": ("x",) * 10**6,
    }.get(name, tuple(range(10**6)))
    begin = time.process_time()  # of this process, whoever else is busy
    with pytest.raises(ParameterError, match=f"{name} must have at most"):
        SamplingParams(**{name: many})
    assert time.process_time() - begin < 5


# a value that must change what is drawn, and what else it needs, where the field's example is none
EFFECTS: dict[str, dict] = {
    "dynatemp_exponent": {"dynatemp_range": 0.9, "dynatemp_exponent": 4.0},
    "smoothing_curve": {"smoothing_factor": 0.2, "smoothing_curve": 3.0},
    "min_k_tau": {"min_k": True, "min_k_tau": 25.0},
    "xtc_probability": {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    "xtc_threshold": {"xtc_probability": 1.0, "xtc_threshold": 0.03},
    "mirostat": {"mirostat": 2, "mirostat_tau": 1.0},
    "mirostat_tau": {"mirostat": 2, "mirostat_tau": 2.0},
    "penalty_last_n": {"presence_penalty": 2.0, "penalty_last_n": 3},
    "dry_allowed_length": {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    "dry_penalty_last_n": {"dry_multiplier": 5.0, "dry_penalty_last_n": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 3},
    "normalize_logits": {"repetition_penalty": 2.0, "normalize_logits": True},
    "min_tokens": {"min_tokens": 50, "stop_token_ids": (0, 3)},
}
# what changes the next tokens alone, or needs more than a row: tested where that is
ELSEWHERE = {"processors", "watermark", "mirostat_eta", "adaptive_decay"}


def effect(name: str) -> dict:
    return EFFECTS.get(name) or company(name)


def law_of(fields: dict) -> torch.Tensor:
    row = torch.linspace(4.0, -4.0, 40)
    slots = Slots(1, 40)
    slots.add(
        0,
        SamplingParams(**fields),
        key=1,
        prompt=[1, 2, 3, 1, 2, 0],
        output=[7, 1, 2, 3, 0, 3, 1, 2],
        eos_token_ids=[39],
        handled_by_caller=validation.CALLER_FIELDS,
    )
    candidates = compute_distribution(row, slots[0])
    law = torch.zeros(40, dtype=torch.float64)
    law[candidates.ids] = candidates.probabilities()
    return law


@pytest.mark.parametrize("name", sorted({*DRAWN, "sampler_order"} - ELSEWHERE))
def test_case_12_every_parameter_changes_something(name):
    fields = effect(name)
    if name == "sampler_order":
        fields |= {"temperature": 0.3, "top_p": 0.5}
    without = {k: v for k, v in fields.items() if k != name and name not in FIELDS[k].needs}
    same = torch.allclose(law_of(fields), law_of(without), atol=1e-6)
    assert not same, f"{fields} changes nothing: EXAMPLES in tests/field_examples.py needs a better value of {name}"


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.needs])
def test_case_12_a_knob_without_the_one_it_belongs_to_is_refused(name):
    with pytest.raises(ParameterError, match=f"{name} has no effect without"):
        SamplingParams(**{name: example(FIELDS[name])})


@pytest.mark.parametrize("name", [name for name, field in DRAWN.items() if field.range is not None])
def test_both_ends_of_every_range_give_a_token(name):
    low, high, low_in, high_in = FIELDS[name].range
    whole = FIELDS[name].range.whole
    for end, inside, inwards in ((low, low_in, 1e-3), (high, high_in, -1e-3)):
        value = end if inside else end + inwards
        fields = effect(name) | {name: int(value) if whole else float(value)}
        for more in ({}, {"presence_penalty": 0.5}, {"sampler_order": ("xtc", "typical_p", "top_n_sigma")}):
            try:
                params = SamplingParams(**more | fields)
            except ParameterError:
                continue
            slots = Slots(1, V)
            slots.add(0, params, key=1, prompt=[1, 2], output=[3, 3], handled_by_caller=validation.CALLER_FIELDS)
            for kind in (logits(1), torch.zeros(1, V), logits(1) * 1e4):
                for backend in ("cpu", "reference"):
                    out = Sampler(slots, backend)(kind, Rows.plain([0], [0], [4]))
                    assert out.status.tolist() == [OK]
                    assert 0 <= int(out.token_ids[0, 0]) < V


def test_removing_the_likeliest_before_top_n_sigma_leaves_something():
    row = torch.full((1, V), -50.0)
    row[0, 3] = row[0, 4] = 10.0
    fields = {"sampler_order": ("xtc", "top_n_sigma"), "xtc_probability": 1.0, "top_n_sigma": 0.1}
    slots = Slots(1, V)
    slots.add(0, SamplingParams(**fields), key=1, prompt=[1])
    for backend in ("cpu", "reference"):
        out = Sampler(slots, backend)(row, Rows.plain([0], [0], [4]))
        assert out.token_ids.tolist() == [[4]]


def test_state_is_learnt_from_what_the_methods_saw_and_not_from_forced_tokens():
    row = logits(1)
    for fields in ({"mirostat": 2, "mirostat_tau": 2.0}, {"mirostat": 1}, {"adaptive_target": 0.05, "top_k": 20}):
        slots = Slots(2, V)
        slots.add(0, SamplingParams(**fields), key=1, prompt=[1])
        slots.add(1, SamplingParams(forced_token_ids=(9,), **fields), key=1, prompt=[1])
        before = dict(slots[0].state)
        for slot in (0, 1):
            out = Sampler(slots)(row, Rows.plain([slot], [0], [1]))
            slots.commit([slot], out.token_ids.tolist())
        assert slots[0].state != before
        assert slots[1].state == before
        assert out.token_ids.tolist() == [[9]]


def test_a_token_taken_back_is_as_if_never_said():
    fields = {
        "presence_penalty": 0.5,
        "repetition_penalty": 1.3,
        "penalty_last_n": 4,
        "dry_multiplier": 1.0,
        "no_repeat_ngram_size": 1,
    }
    slots = Slots(1, V)
    slots.add(0, SamplingParams(**fields), key=1, prompt=[1, 2, 3], output=[4, 1, 2])
    before = compute_distribution(logits(1)[0], slots[0])
    for count in (1, 3):
        slots.commit([0], [[30, 2, 1][:count]])
        slots.rewind(0, count)
        after = compute_distribution(logits(1)[0], slots[0])
        assert torch.equal(after.ids, before.ids)
        assert torch.equal(after.logits, before.logits)
