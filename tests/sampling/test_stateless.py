"""`sample`, for engines that keep their own state: the tokens of `Sampler`, whatever the parameters, and clear
errors."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kernels.backends import DEVICES, QUIET
from tailrace.errors import ParameterError
from tailrace.params import NEUTRAL, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, request_key, sample
from tailrace.sampling.stateless import FIELDS, MAX_KEPT, kept

V = 300
RANDOM = {
    "temperature": lambda rng: rng.choice([0.0, 1.0, rng.uniform(0.1, 3.0)]),
    "top_k": lambda rng: rng.choice([0, -1, 1, rng.randrange(1, V), 10**6]),
    "top_p": lambda rng: rng.choice([1.0, 0.0, rng.uniform(0.1, 1.0)]),
    "min_p": lambda rng: rng.choice([0.0, 0.0, rng.uniform(0.0, 0.3)]),
    "top_a": lambda rng: rng.choice([0.0, 0.0, rng.uniform(0.0, 0.5)]),
    "typical_p": lambda rng: rng.choice([1.0, 1.0, rng.uniform(0.2, 1.0)]),
    "epsilon_cutoff": lambda rng: rng.choice([0.0, 0.0, rng.uniform(0.0, 0.01)]),
    "eta_cutoff": lambda rng: rng.choice([0.0, 0.0, rng.uniform(0.0, 0.01)]),
    "top_n_sigma": lambda rng: rng.choice([0.0, -1.0, rng.uniform(0.5, 3.0)]),
}
FORMS = {
    "lists": lambda column: column,
    "tuples": tuple,
    "arrays": np.array,
    "tensors": lambda column: torch.tensor(column, dtype=torch.int64 if isinstance(column[0], int) else torch.float64),
}


def by_sampler(logits: torch.Tensor, fields: dict, seeds: list[int], positions: list[int], top: int | None, **rows):
    """The same, by slots."""
    slots = Slots(len(seeds), logits.shape[1])
    for row, seed in enumerate(seeds):
        asked = {name: column[row] for name, column in fields.items()}
        if asked.get("temperature") == 0.0:
            asked = {"temperature": 0.0}
        slots.add(row, SamplingParams(**asked, logprobs=top), key=seed, prompt=[1])
    places = range(len(seeds))
    return Sampler(slots, rows.pop("backend", None))(logits, Rows.plain(places, places, positions, **rows))


def asked_at_random(seed: int, count: int):
    rng = random.Random(seed)
    fields = {name: [make(rng) for _ in range(count)] for name, make in RANDOM.items() if rng.random() < 0.7}
    seeds = [rng.randrange(-(2**63), 2**63) for _ in range(count)]
    positions = [rng.randrange(2**40) for _ in range(count)]
    logits = torch.randn(count, V, generator=torch.Generator().manual_seed(seed)) * 3
    return logits, fields, seeds, positions


def test_every_field_is_tried():
    assert RANDOM.keys() == set(FIELDS)


@pytest.mark.parametrize("seed", range(24))
def test_the_tokens_are_the_samplers(seed):
    logits, fields, seeds, positions = asked_at_random(seed, 17)
    form = list(FORMS.values())[seed % len(FORMS)]
    given = {name: form(column) for name, column in fields.items()}
    expected = by_sampler(logits, fields, seeds, positions, None)
    found = sample(logits, seed=form(seeds), position=form(positions), **given)
    assert found.dtype == torch.int64
    assert found.tolist() == expected.token_ids[:, 0].tolist()


def test_another_parameter_seed_or_position_is_seen():
    """What the comparison would see: each of them matters."""
    logits, fields, seeds, positions = asked_at_random(1, 64)
    found = sample(logits, seed=seeds, position=positions, **fields).tolist()
    hot = fields | {"temperature": [t * 1.7 for t in fields["temperature"]]}
    assert sample(logits, seed=seeds, position=positions, **hot).tolist() != found
    assert sample(logits, seed=seeds, position=[p + 1 for p in positions], **fields).tolist() != found
    assert sample(logits, seed=seeds[::-1], position=positions, **fields).tolist() != found


@QUIET
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
def test_the_tokens_are_the_samplers_on_a_gpu(seed):
    device = torch.device(DEVICES["gpu"])
    logits, fields, seeds, positions = asked_at_random(seed, 9)
    given = {name: FORMS["tensors"](column).to(device) for name, column in fields.items()}
    expected = by_sampler(logits.to(device), fields, seeds, positions, 3, backend="gpu")
    ids, found = sample(
        logits.to(device),
        seed=torch.tensor(seeds, device=device),
        position=positions,
        logprobs=3,
        backend="gpu",
        **given,
    )
    assert ids.device.type == device.type
    assert ids.tolist() == expected.token_ids[:, 0].tolist()
    assert found.top_ids.tolist() == [entry.top_ids for [entry] in expected.logprobs]
    assert ids.tolist() == sample(logits, seed=seeds, position=positions, **fields).tolist()


def test_logprobs_are_the_samplers():
    logits, fields, seeds, positions = asked_at_random(3, 6)
    expected = by_sampler(logits, fields, seeds, positions, 4)
    ids, found = sample(logits, seed=seeds, position=positions, logprobs=4, **fields)
    assert ids.tolist() == expected.token_ids[:, 0].tolist()
    for row, [entry] in enumerate(expected.logprobs):
        assert (found.logprobs[row].item(), found.ranks[row].item()) == (entry.logprob, entry.rank)
        assert (found.top_ids[row].tolist(), found.top_logprobs[row].tolist()) == (entry.top_ids, entry.top_logprobs)
    assert sample(logits, seed=seeds, position=positions, logprobs=0, **fields)[1].top_ids.shape == (6, 0)


def test_a_number_is_for_all_rows():
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(2))
    fields = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}
    found = sample(logits, seed=7, position=3, **fields)
    again = sample(logits, seed=[request_key(7, row) for row in range(5)], position=[3] * 5, **fields)
    assert found.tolist() == again.tolist()
    spread = {name: [value] * 5 for name, value in fields.items()}
    assert sample(logits, seed=7, position=3, **spread).tolist() == found.tolist()
    same = logits[:1].repeat(64, 1)
    assert len(set(sample(same, seed=7, position=3).tolist())) > 10  # equal rows are not the same token


def test_an_order_is_the_samplers():
    """Top-p's prefix of the whole distribution and top-p of what top-k has left are not the same."""
    logits = torch.randn(400, V, generator=torch.Generator().manual_seed(4))
    seeds = list(range(400))
    fields = {"temperature": [0.8] * 400, "top_p": [0.5] * 400, "top_k": [20] * 400}
    order = ("temperature", "top_p", "top_k")
    found = sample(logits, seed=seeds, position=[9] * 400, sampler_order=order, **fields)
    given = {**fields, "sampler_order": [order] * 400}
    assert torch.equal(found, by_sampler(logits, given, seeds, [9] * 400, None).token_ids[:, 0])
    assert not torch.equal(found, sample(logits, seed=seeds, position=[9] * 400, **fields))
    with pytest.raises(ParameterError, match="sampler_order"):
        sample(logits, temperature=0.5, sampler_order=("top_q",))
    for wrong in (None, 5, "temperature"):
        with pytest.raises(ParameterError, match="sampler_order must be a list of names"):
            sample(logits, temperature=0.5, sampler_order=wrong)


def test_without_a_seed_each_call_draws_anew():
    logits = torch.zeros(64, V)
    assert sample(logits).tolist() != sample(logits).tolist()
    assert len(set(sample(logits).tolist())) > 20


def test_a_bitmask_and_bad_rows():
    logits = torch.zeros(4, V)
    logits[1], logits[2, 5] = -torch.inf, torch.nan
    bitmask = torch.full((4, -(-V // 32)), -1, dtype=torch.int32)
    bitmask[0] = 0
    bitmask[0, 2] = 1 << 3
    found = sample(logits, seed=1, position=0, bitmask=bitmask).tolist()
    assert found[:3] == [67, -1, -1]
    assert found[3] == sample(logits, seed=1, position=0).tolist()[3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_strides(dtype):
    wide = (torch.randn(6, V + 13, generator=torch.Generator().manual_seed(4)) * 3).to(dtype)
    logits = wide[::2, :V]
    expected = by_sampler(logits, {"temperature": [0.7] * 3}, [1, 2, 3], [4, 5, 6], None)
    found = sample(logits, temperature=0.7, seed=[1, 2, 3], position=[4, 5, 6])
    assert found.tolist() == expected.token_ids[:, 0].tolist()


def test_no_rows():
    assert sample(torch.empty(0, V), temperature=[], seed=[], position=[]).tolist() == []


def test_sets_of_parameters_are_kept_within_a_bound():
    logits = torch.randn(64, V)
    for turn in range(MAX_KEPT // 64 + 3):
        sample(logits, temperature=[1.0 + (turn * 64 + row) * 1e-6 for row in range(64)])
    assert len(kept) <= MAX_KEPT


TWO = torch.zeros(2, V)


@pytest.mark.parametrize(
    ("logits", "given", "field", "words"),
    [
        (
            TWO,
            {"temperature": [0.5, -1.0]},
            "temperature",
            r"temperature must be a number in \[0, 1000000\], got -1.0 in row 1",
        ),
        (TWO, {"temperature": -1.0}, "temperature", r"temperature must be .* got -1.0"),
        (TWO, {"temperature": [0.5]}, "temperature", "temperature must be a number or 2 of them, one per row, got 1"),
        (TWO, {"temperature": [0.5, float("nan")]}, "temperature", "got nan in row 1"),
        (TWO, {"temperature": torch.zeros(2, 2)}, "temperature", r"got torch.float32 \(2, 2\)"),
        (TWO, {"temperature": "hot"}, "temperature", "got 'hot'"),
        (TWO, {"temperature": [0.5, None]}, "temperature", "temperature must be a number"),
        (TWO, {"temperature": True}, "temperature", "temperature must be a number"),
        (TWO, {"temperature": [True, 0.5]}, "temperature", "temperature must be a number"),
        (TWO, {"temperature": [0.0, 0.5], "top_p": [2.0, 1.0]}, "top_p", "top_p must be .* got 2.0 in row 0"),
        (TWO, {"top_k": [1, -7]}, "top_k", "top_k must be an integer in .* got -7 in row 1"),
        (TWO, {"top_k": 2.5}, "top_k", "top_k must be an integer or 2"),
        (TWO, {"top_k": torch.tensor([2.0, 3.0])}, "top_k", "got torch.float32"),
        (TWO, {"top_k": torch.tensor([True, False])}, "top_k", "got torch.bool"),
        (TWO, {"top_q": 0.5}, "top_q", "fields must be out of temperature"),
        (TWO, {"seed": [1, 2**63], "position": 0}, "seed", f"got {2**63} in row 1"),
        (TWO, {"seed": 1.5, "position": 0}, "seed", "seed must be an integer"),
        (TWO, {"seed": 1}, "position", "position must be given with seed"),
        (TWO, {"seed": 1, "position": [0, -1]}, "position", "got -1 in row 1"),
        (TWO, {"logprobs": -1}, "logprobs", "logprobs must be an integer"),
        (TWO, {"logprobs": V + 1}, "logprobs", "logprobs must be an integer"),
        (TWO, {"bitmask": torch.zeros(2, 3, dtype=torch.int32)}, "bitmask", "bitmask must be"),
        (TWO, {"bitmask": torch.zeros(3, 10, dtype=torch.int32)}, "bitmask", "bitmask must be"),
        (TWO, {"bitmask": torch.zeros(2, 10)}, "bitmask", "bitmask must be"),
        (TWO.double(), {}, "logits", "bf16, f16 or f32"),
        (torch.zeros(V), {}, "logits", r"logits must be \[R, V\]"),
        ([[0.0]], {}, "logits", "logits must be a Tensor"),
        (TWO.to("meta"), {}, "logits", "a tensor on meta"),
        (TWO, {"backend": "tpu"}, "backend", "backend must be one of cpu, gpu, got 'tpu'"),
        (TWO, {"backend": "reference"}, "backend", "backend must be one of cpu, gpu, got 'reference'"),
    ],
)
def test_errors_name_the_field_and_the_row(logits, given, field, words):
    with pytest.raises(ParameterError, match=words) as caught:
        sample(logits, **given)
    assert caught.value.param == field


def test_what_is_left_out_is_neutral():
    logits, _, seeds, positions = asked_at_random(5, 8)
    neutral = {name: NEUTRAL[name] for name in FIELDS}
    plain = sample(logits, seed=seeds, position=positions)
    assert sample(logits, seed=seeds, position=positions, **neutral).tolist() == plain.tolist()
