"""The ids that survive: those of the reference's candidates, by every backend, for every method, rule and neighbour."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from field_examples import FIELDS
from kernels.backends import DEVICES, QUIET
from sampling import test_backends, test_mixed
from sampling.test_backends import GPU, meets, rows_of, sampled, slots_for
from tailrace import _cpu
from tailrace.errors import ParameterError
from tailrace.kernels.output import SamplingMask
from tailrace.kernels.rows import RULES, Guidance, Rows
from tailrace.params import SamplingParams
from tailrace.request.fields import removes_most
from tailrace.sampling import Sampler, Slots
from tailrace.sampling.backends import backend_of
from tailrace.sampling.backends.device_slots import DeviceSlots
from tailrace.sampling.pipeline import beyond_device
from tailrace.sampling.reference import compute_distribution

V = test_mixed.V
# where the mass that is asked for lies within rounding of all there is, or within a run of equals
ROUNDED = ("top_p nearly all", "tail-free first")
# where each entry at the bound has less than the sums' rounding: 1e-7
BELOW_ROUNDING = {("top_p most", 33_000)}


def asking(fields: dict) -> dict:
    """The same with the report; where nothing cuts, top_k lets everything through."""
    cuts = any(removes_most(FIELDS[name]) for name in fields)
    return fields | ({} if cuts else {"top_k": 10**6}) | {"return_sampling_mask": True}


ASKED = {name: asking(fields) for name, fields in test_backends.PARAMS.items()}
ON_GPU = [
    name
    for name, fields in ASKED.items()
    if name in test_backends.ON_GPU
    and not beyond_device(SamplingParams(**{of: value for of, value in fields.items() if of != "bad_words"}), GPU)
]
MIXED = [asking(fields) for fields in (*test_mixed.PARAMS.values(), *test_mixed.RARE.values())]


def lists(mask: SamplingMask | None) -> list[list[int]]:
    assert mask is not None
    return [part.tolist() for part in mask.parts()]


def test_a_mask_needs_a_truncation_or_an_edit_that_excludes_most_tokens():
    needed = FIELDS["return_sampling_mask"].needs
    assert len(needed) == len(set(needed))
    assert {"top_k", "p_less_norm", "mirostat", "allowed_token_ids", "grammar"} < set(needed)
    for name, field in FIELDS.items():
        switch = field.kind == "truncation" and not field.needs
        assert (name in needed) == (switch or field.excludes == "most"), name
    assert not {"bad_words", "min_tokens", "min_k_tau"} & set(needed)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"temperature": 0.7, "presence_penalty": 1.0}])
def test_a_request_that_nothing_cuts_is_refused(fields):
    with pytest.raises(ParameterError, match=r"has no effect without .*top_k or top_p or") as caught:
        SamplingParams(**fields, return_sampling_mask=True)
    assert caught.value.param == "return_sampling_mask"


# ---- every method


@pytest.mark.few(50)
@pytest.mark.parametrize(
    ("name", "vocab"),
    [
        pytest.param(name, vocab, marks=[] if meets(name, vocab) and vocab < 4000 else pytest.mark.long)
        for name in ASKED
        for vocab in (1, 2, 16, 255, 256, 257, 4097, 33_000)
        if not (name in ROUNDED and vocab > 16) and (name, vocab) not in BELOW_ROUNDING
    ],
)
def test_survivors_are_the_candidates(name, vocab):
    logits = torch.stack(list(rows_of(vocab).values()))
    slots = slots_for(ASKED[name], vocab, logits.shape[0])
    kernel, reference = sampled(slots, logits, "cpu"), sampled(slots, logits, "reference")
    found = lists(kernel.sampling_mask)
    assert found == lists(reference.sampling_mask)
    for i, (ids, token) in enumerate(zip(found, kernel.token_ids[:, 0].tolist(), strict=True)):
        if token < 0:  # nothing may be drawn
            assert not ids
            continue
        assert token in ids
        slot = slots[i]
        assert ids == ([token] if slot.params.greedy else compute_distribution(logits[i], slot, 9).ids.tolist())


@pytest.mark.parametrize("vocab", [4097, 33_000])
@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_p": 0.6, "temperature": 1.7}, {"typical_p": 0.6}])
def test_of_rows_so_flat_that_candidates_are_not_collected(fields, vocab):
    """There the boundary alone is known (csrc/sample/flat_rows.h), and the ids are looked for once more."""
    kinds = rows_of(vocab)
    logits = torch.stack([kinds[kind] for kind in ("normal", "flat", "two values", "steps")]) * 0.7
    slots, before = slots_for(asking(fields), vocab, len(logits)), _cpu.flat_draws()
    found = agree(slots, logits, Rows.plain(range(4), range(4), [9] * 4))
    assert _cpu.flat_draws() > before + 1
    assert all(len(ids) > vocab / 8 for ids in found)


@pytest.mark.few(12)
@QUIET
@pytest.mark.parametrize("name", ON_GPU)
def test_the_same_on_a_gpu(name, monkeypatch):
    """Without one, in Triton's interpreter; there by nobody else's help."""
    monkeypatch.setattr(DeviceSlots, "falling_back", lambda *_: [])
    logits = torch.stack(list(rows_of(257).values()))[test_backends.few(2, name)]
    slots = slots_for(ASKED[name], 257, logits.shape[0])
    expected = sampled(slots, logits, "cpu")
    assert lists(sampled(slots, logits.to(DEVICES["gpu"]), "gpu").sampling_mask) == lists(expected.sampling_mask)


# ---- drafts, forced tokens, reports and neighbours


def agree(slots: Slots, logits: torch.Tensor, rows: Rows, backend: str = "cpu") -> list[list[int]]:
    """Raise AssertionError unless both have the same survivors of the same tokens; those."""
    kernel = Sampler(slots, backend)(logits.to(DEVICES[backend]), rows)
    reference = Sampler(slots, "reference")(logits, rows)
    assert kernel.token_ids.tolist() == reference.token_ids.tolist()
    found = lists(kernel.sampling_mask)
    assert found == lists(reference.sampling_mask)
    owners = [slots[owner].params.return_sampling_mask for owner in rows.owners.tolist()]
    for place, (ids, token) in enumerate(zip(found, kernel.token_ids.flatten().tolist(), strict=True)):
        assert (token in ids) if token >= 0 and owners[place // rows.width] else not ids
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
def test_each_token_of_a_draft_has_its_own_rows(seed, rule):
    """Of the row's distribution, not of the remainder that a rejection draws from."""
    slots, logits, rows = test_mixed.world(seed, MIXED)
    rows = replace(rows, rule=torch.full((rows.num_requests,), RULES.index(rule), dtype=torch.int32))
    several = [i for i, ids in enumerate(agree(slots, logits, rows)) if ids and i % rows.width]
    assert len(several) > 5


@pytest.mark.long
@QUIET
def test_drafts_on_a_gpu():
    slots, logits, rows = test_mixed.world(4, MIXED)
    agree(slots, logits, rows, "gpu")


def test_greedy_and_forced_tokens_stand_alone_and_who_does_not_ask_has_none():
    asked = [
        {"temperature": 0.0, "top_k": 4, "return_sampling_mask": True, "logprobs": 3, "logprobs_mode": "processed"},
        {"top_p": 0.9, "forced_token_ids": (4, 5), "return_sampling_mask": True},
        {"top_p": 0.9},
        {"top_k": 4, "return_sampling_mask": True, "logprobs": 3},
        {"top_k": 4, "return_sampling_mask": True, "normalize_logits": True},
    ]
    slots = Slots(len(asked), V)
    for slot, fields in enumerate(asked):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[1, 2])
    logits = torch.randn(len(asked), V, generator=torch.Generator().manual_seed(1))
    places = range(len(asked))
    found = agree(slots, logits, Rows.plain(places, places, [2] * len(asked)))
    assert [len(ids) for ids in found] == [1, 1, 0, 4, 4]
    assert found[1] == [4]
    nobody = Sampler(slots)(logits[:1], Rows.plain([2], [0], [2]))
    assert nobody.sampling_mask is None


@QUIET
@pytest.mark.parametrize("backend", ["cpu", "gpu", "reference"])
def test_neighbours_do_not_matter(backend):
    slots, logits, rows = test_mixed.world(9, MIXED[:: 1 if backend == "cpu" else 6])
    crowd = Sampler(slots, backend)(logits.to(DEVICES[backend]), rows)
    found = lists(crowd.sampling_mask)
    for i in random.Random(1).sample(range(rows.num_requests), min(rows.num_requests, 8)):
        own = rows.of(i)
        alone = lists(Sampler(slots, backend)(logits.to(DEVICES[backend]), own).sampling_mask)
        assert alone == found[i * rows.width : i * rows.width + own.width]


def test_guided_rows_have_the_survivors_of_the_combined_row():
    slots = Slots(2, V)
    for slot in range(2):
        slots.add(slot, SamplingParams(top_p=0.8, return_sampling_mask=True), key=slot, prompt=[1])
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(2)) * 2
    rows = Rows.plain([0, 1], [0, 1], [1, 1], guidance=Guidance.of([2, -1], [1.7, 1.0]))
    plain = Rows.plain([0, 1], [0, 1], [1, 1])
    guided = agree(slots, logits, rows)
    apart = agree(slots, logits, plain)
    assert guided[1] == apart[1]
    assert guided[0] != apart[0]


def test_a_trainer_finds_the_samplers_own_probability():
    """By the temperature and the softmax over the survivors alone; over the whole vocabulary it would be another."""
    fields = {"temperature": 0.7, "top_p": 0.8, "top_k": 40, "logprobs": 0, "logprobs_mode": "processed"}
    slots = Slots(20, V)
    for slot in range(20):
        slots.add(slot, SamplingParams(**fields, return_sampling_mask=True), key=slot, prompt=[1])
    logits = torch.randn(20, V, generator=torch.Generator().manual_seed(5)) * 2
    drawn = Sampler(slots)(logits, Rows.plain(range(20), range(20)))
    whole = []
    for i, ids in enumerate(drawn.sampling_mask.parts() if drawn.sampling_mask else ()):
        token, [entry] = drawn.token_ids[i, 0], drawn.logprobs[i] or []
        mine = (logits[i, ids].double() / 0.7).log_softmax(0)[ids == token]
        assert float(mine) == pytest.approx(entry.logprob, abs=1e-5)
        whole.append(float((logits[i].double() / 0.7).log_softmax(0)[token]) - entry.logprob)
    assert max(whole) < -0.1


# ---- what the comparison would see


@pytest.mark.parametrize("fault", ["a stage less", "one more"])
def test_a_kernel_that_cuts_elsewhere_is_seen(fault):
    """The planted faults: the kernels leave out a last stage, or keep one token more. Most tokens are the same."""
    slots = Slots(20, V)
    for slot in range(20):
        fields = {"top_k": 3, "min_p": 1e-6, "sampler_order": ("min_p",)}
        slots.add(slot, SamplingParams(**fields, return_sampling_mask=True), key=slot, prompt=[1])
    logits = torch.randn(20, V, generator=torch.Generator().manual_seed(3)) * 9
    rows = Rows.plain(range(20), range(20), [1] * 20)
    agree(slots, logits, rows)
    for record in backend_of(slots, "cpu", torch.device("cpu")).programs.records:
        if fault == "a stage less":
            record.num_stages -= 1
        else:
            record.stages[record.num_stages - 1].k += 1
    kernel, reference = (Sampler(slots, backend)(logits, rows) for backend in ("cpu", "reference"))
    assert (kernel.token_ids == reference.token_ids).sum() >= 15
    with pytest.raises(AssertionError):
        agree(slots, logits, rows)


def test_parts_are_replaced_and_the_others_stay():
    mask = SamplingMask(torch.tensor([1, 5, 7], dtype=torch.int32), torch.tensor([0, 2, 2, 3]))
    new = mask.replaced({1: torch.tensor([8, 9]), 2: torch.empty(0, dtype=torch.int64)})
    assert lists(new) == [[1, 5], [8, 9], []]
    assert (new.token_ids.dtype, new.offsets.dtype) == (torch.int32, torch.int64)
    assert lists(SamplingMask.empty(2)) == [[], []]


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_the_device_has_the_same_ids_as_flags(backend):
    """Also of a request that the GPU's kernels leave to the reference sampler, and of one without a report."""
    size = 77  # an odd number of words
    slots, rows = Slots(3, size), Rows.plain([0, 1, 2], [0, 1, 2], [1, 1, 1])
    slots.add(0, SamplingParams(seed=1, top_k=9, return_sampling_mask=True), prompt=())
    slots.add(1, SamplingParams(seed=2, mirostat=2, return_sampling_mask=True), prompt=())
    slots.add(2, SamplingParams(seed=3), prompt=())
    pending = Sampler(slots, backend=backend).begin(torch.randn(3, size), rows)
    flags = pending.flag_survivors(size)
    assert flags.shape == (3, 1, size)
    assert [row.nonzero().flatten().tolist() for row in flags[:, 0]] == lists(pending.wait().sampling_mask)
    assert flags[0].sum() == 9
    assert flags[1].any()
    assert not flags[2].any()
