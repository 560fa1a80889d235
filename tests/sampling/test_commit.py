"""What a sequence learns from its own tokens: all of those that were drawn, however they are committed, and none that
were not."""

from __future__ import annotations

import math

import pytest
import torch

from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots

V = 30
LEARNING = {"mirostat": {"mirostat": 2, "mirostat_tau": 2.0}, "adaptive": {"adaptive_target": 0.3}}


def drawn(fields: dict) -> tuple[Slots, list[int]]:
    """A slot that has just drawn several tokens in one step."""
    slots = Slots(2, V)
    slots.add(0, SamplingParams(**fields), key=5, prompt=[1, 2])
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(8)) * 2
    said: list[int] = []
    for _ in range(3):  # the next token of the exact rule is the draft that is accepted
        out = Sampler(slots)(logits, Rows.drafted([0], [2], [[*said, *[0] * (3 - len(said))]]))
        said = out.token_ids[0, : min(3, int(out.num_tokens[0]))].tolist()
    out = Sampler(slots)(logits, Rows.drafted([0], [2], [said]))
    tokens = out.token_ids[0, : int(out.num_tokens[0])].tolist()
    assert len(tokens) == 4
    return slots, tokens


@pytest.mark.parametrize("name", LEARNING)
def test_one_by_one_is_as_all_at_once(name):
    slots, tokens = drawn(LEARNING[name])
    start = dict(slots[0].state)
    slots.commit([0], [tokens])
    together = dict(slots[0].state)
    slots, _ = drawn(LEARNING[name])
    states = [start]
    for token in tokens:
        slots.commit([0], [[token]])
        states.append(dict(slots[0].state))
    assert states[-1] == together
    assert len({tuple(state.values()) for state in states}) == 5  # each of them taught something


@pytest.mark.parametrize("name", LEARNING)
def test_nothing_is_learnt_from_a_token_that_was_not_drawn_nor_after_it(name):
    slots, tokens = drawn(LEARNING[name])
    slots.commit([0], [tokens[:1]])
    learnt = dict(slots[0].state)
    slots.commit([0], [[(tokens[1] + 1) % V]])
    assert slots[0].state == learnt
    slots.commit([0], [[tokens[2]]])  # the same token, after another text
    assert slots[0].state == learnt


@pytest.mark.parametrize("name", LEARNING)
def test_what_was_left_over_is_forgotten_by_the_next_step(name):
    slots, tokens = drawn(LEARNING[name])
    slots.commit([0], [tokens[:1]])
    learnt = dict(slots[0].state)
    out = Sampler(slots)(torch.full((1, V), -math.inf).index_fill(1, torch.tensor([9]), 0.0), Rows.plain([0], [0], [3]))
    assert out.token_ids.tolist() == [[9]]
    assert slots[0].updates == [(9, pytest.approx(0.0))]
    slots.commit([0], [[9]])
    assert slots[0].state != learnt
    assert slots[0].updates == []


def test_a_fork_learns_for_itself():
    slots, tokens = drawn(LEARNING["mirostat"])
    slots.fork(0, 1, key=6)
    slots.commit([0], [tokens])
    after = dict(slots[0].state)
    assert slots[1].state != after
    slots.commit([1], [tokens])
    assert slots[1].state == after


def test_moving_edits_are_those_of_the_next_position_after_each_token():
    """bad_words and forced tokens with commits one at a time: the kernels' record follows."""
    slots = Slots(1, V)
    slots.add(0, SamplingParams(temperature=0.0, bad_words=((4, 5),), forced_token_ids=(3, 4)), key=1, prompt=[1])
    row = torch.zeros(1, V)
    row[0, 5], row[0, 6] = 9.0, 8.0
    found = []
    for position in range(4):
        found.append(int(Sampler(slots)(row, Rows.plain([0], [0], [1 + position])).token_ids[0, 0]))
        slots.commit([0], [found[-1:]])
    assert found == [3, 4, 6, 5]
