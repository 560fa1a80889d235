"""Slots of engines that move rows: moved, swapped and adopted requests go on as they would have, and default keys agree
between ranks."""

from __future__ import annotations

import random

import pytest
import torch

from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.sampling import KeySource, Rows, Sampler, Slots, request_key
from tailrace.sampling.backends.cpu import CPUBackend

V = 60
ASKED: list[dict] = [
    {"temperature": 0.8},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"mirostat": 2, "mirostat_tau": 2.0},
    {"bad_words": ((3, 4), (5,)), "top_k": 20},
    {"forced_token_ids": (1, 2, 3, 4, 5, 6)},
    {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    {"penalty_last_n": 3, "repetition_penalty": 1.8},
]


class World:
    """Requests by name, each in some slot; their logits depend on the name and the step alone."""

    def __init__(self, backend: str) -> None:
        self.slots = Slots(len(ASKED) + 3, V)
        self.sampler = Sampler(self.slots, backend)
        self.place = dict(enumerate(range(len(ASKED))))
        self.texts: dict[int, list[int]] = {name: [] for name in self.place}
        for name, fields in enumerate(ASKED):
            self.slots.add(name, SamplingParams(**fields), key=name, prompt=[7, 8])

    def step(self) -> None:
        names = list(self.place)
        count = len(self.texts[0])
        logits = torch.stack([torch.randn(V, generator=torch.Generator().manual_seed(97 * n + count)) for n in names])
        out = self.sampler(logits, Rows.plain([self.place[n] for n in names], range(len(names))))
        self.slots.commit([self.place[n] for n in names], out.tokens())
        for name, [token] in zip(names, out.tokens(), strict=True):
            self.texts[name].append(token)

    def move(self, rng: random.Random) -> None:
        name, other = rng.sample(sorted(self.place), 2)
        free = sorted(set(range(len(ASKED) + 3)) - set(self.place.values()))
        if rng.random() < 0.5:
            target = rng.choice(free)
            self.slots.move(self.place[name], target)
            self.place[name] = target
        else:
            self.slots.swap(self.place[name], self.place[other])
            self.place[name], self.place[other] = self.place[other], self.place[name]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_moved_requests_go_on_as_they_would_have(backend):
    still, moved, rng = World(backend), World(backend), random.Random(3)
    for _ in range(14):
        still.step()
        for _ in range(3):
            moved.move(rng)
        moved.step()
    assert moved.texts == still.texts
    assert set(moved.place.values()) != set(still.place.values())


def test_a_backend_that_is_not_told_is_seen(monkeypatch):
    """The planted fault: the CPU's records stay where they were."""
    still, moved = World("cpu"), World("cpu")
    still.step()
    moved.step()
    monkeypatch.setattr(CPUBackend, "add", lambda self, slot: None)
    monkeypatch.setattr(CPUBackend, "remove", lambda self, slot: None)
    moved.slots.swap(0, 4)
    moved.place[0], moved.place[4] = 4, 0
    for _ in range(3):
        still.step()
        moved.step()
    assert moved.texts != still.texts


def test_a_backend_that_comes_late_knows_all():
    early, late = World("cpu"), World("reference")
    for _ in range(4):
        early.step()
        late.step()
    late.sampler = Sampler(late.slots, "cpu")
    for _ in range(4):
        early.step()
        late.step()
    assert early.texts == late.texts


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda slots: slots.move(9, 8), "slot"),
        (lambda slots: slots.move(0, 1), "target"),
        (lambda slots: slots.move(0, 0), "target"),
        (lambda slots: slots.move(0, 99), "target"),
        (lambda slots: slots.swap(0, 9), "slot"),
        (lambda slots: slots.swap(-1, 0), "slot"),
        (lambda slots: slots.adopt(9, [1]), "slot"),
        (lambda slots: slots.adopt(0, [V]), "output"),
        (lambda slots: slots.adopt(0, [1.5]), "output"),
    ],
)
def test_what_can_not_be_moved(change, field):
    world = World("cpu")
    world.step()
    with pytest.raises(ParameterError) as caught:
        change(world.slots)
    assert caught.value.param == field
    other = World("cpu")
    other.step()
    world.step()
    other.step()
    assert world.texts == other.texts


def state_of(slots: Slots, slot: int) -> tuple:
    entry = slots[slot]
    history = entry.history
    return (
        entry.num_output,
        history and history.tokens,
        history and history.counts and history.counts.lists(),
        repr(entry.next_edits),
    )


@pytest.mark.parametrize("fields", [ASKED[0], ASKED[1], ASKED[3], ASKED[5], ASKED[6]])
@pytest.mark.parametrize("output", [[], [9, 3], [9, 3, 4, 9, 3], [9, 3, 4, 9, 3, 7, 7], [2, 2], [9, 3, 5, 5, 5, 5]])
def test_an_adopted_output_is_as_one_that_was_committed(fields, output):
    adopted, fresh = (Slots(1, V) for _ in range(2))
    adopted.add(0, SamplingParams(**fields), key=1, prompt=[7, 8])
    adopted.commit([0], [[9, 3, 4, 9, 3]])
    adopted.adopt(0, output)
    fresh.add(0, SamplingParams(**fields), key=1, prompt=[7, 8], output=output)
    if fields != ASKED[1] and fields != ASKED[6]:  # the address of the counts is another
        assert state_of(adopted, 0) == state_of(fresh, 0)
    assert state_of(adopted, 0)[:3] == state_of(fresh, 0)[:3]
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(5))
    found = [Sampler(slots)(logits, Rows.plain([0], [0])).token_ids.tolist() for slots in (adopted, fresh)]
    assert found[0] == found[1]


def test_state_that_can_not_be_taken_back_is_not():
    slots = Slots(1, V)
    slots.add(0, SamplingParams(mirostat=2), key=1, prompt=[1])
    slots.adopt(0, [4, 5])
    with pytest.raises(ParameterError, match="can't be taken back"):
        slots.adopt(0, [4])
    slots.adopt(0, [4, 5, 6])
    assert slots[0].num_output == 3


# ---- default keys


def keys_of(slots: Slots) -> list[int]:
    return [entry.key for entry in slots.slots if entry is not None]


def test_ranks_agree_on_requests_without_a_seed():
    ranks = [Slots(5, V, default_keys=KeySource(77)) for _ in range(2)]
    for slots in ranks:
        for slot in range(4):
            slots.add(slot, SamplingParams(seed=5 if slot == 2 else None), prompt=[1])
    assert keys_of(ranks[0]) == keys_of(ranks[1])
    assert len(set(keys_of(ranks[0]))) == 4
    assert keys_of(ranks[0])[2] == 5
    other = Slots(1, V, default_keys=KeySource(78))
    other.add(0, SamplingParams(), prompt=[1])
    assert keys_of(other)[0] not in keys_of(ranks[0])


def test_a_refused_request_takes_no_key():
    ranks = [Slots(2, V, default_keys=KeySource(77)) for _ in range(2)]
    with pytest.raises(ParameterError):
        ranks[0].add(0, SamplingParams(), prompt=[V])
    for slots in ranks:
        slots.add(0, SamplingParams(), prompt=[1])
    assert keys_of(ranks[0]) == keys_of(ranks[1]) == [request_key(77, 1)]


def test_processes_that_name_the_same_parts_have_the_same_keys():
    first, same, other = KeySource.shared("engine", 0), KeySource.shared("engine", 0), KeySource.shared("engine", 1)
    assert [first.key_of(None), first.key_of(None)] == [same.key_of(None), same.key_of(None)]
    assert other.key_of(None) != KeySource.shared("engine", 0).key_of(None)


def test_keys_are_fresh_without_a_source():
    slots = Slots(20, V)
    for slot in range(20):
        slots.add(slot, SamplingParams(), prompt=[1])
    assert len(set(keys_of(slots))) == 20


@pytest.mark.parametrize("seed", [1.5, "7", True, 2**63, -(2**63) - 1])
def test_a_source_wants_a_seed_of_64_bits(seed):
    with pytest.raises(ParameterError, match="seed must be an integer of 64 bits"):
        KeySource(seed)
    with pytest.raises(ParameterError, match="default_keys must be a KeySource"):
        Slots(1, V, default_keys=seed)
