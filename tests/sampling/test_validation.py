"""What the library is given is looked at where it comes in: an error that names the argument, before anything has
changed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tailrace.errors import ParameterError
from tailrace.kernels.status import NAN, OK
from tailrace.params import NEUTRAL, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, request_key
from tailrace.sampling.sequence_state import SequenceState
from tailrace.sampling.validation import CALLER_FIELDS

V = 40


def slots_of(*fields: dict, **more) -> Slots:
    slots = Slots(len(fields) + 1, V)
    for i, field in enumerate(fields):
        slots.add(i, SamplingParams(**field), key=i, prompt=[1, 2], **more)
    return slots


@pytest.mark.parametrize(
    ("slots", "tokens", "message"),
    [
        ([0, 1], [[5], [-1]], "tokens must be token ids in 0 … 39, got -1; Sampled.tokens"),
        ([0, 1], [[5], [V]], "tokens must be token ids in 0 … 39, got 40"),
        ([0, 1], [5, 6], "tokens must be lists of token ids, one per slot"),
        ([0, 1], [[5], [2.5]], "tokens must be lists of token ids"),
        ([0, 1], [[5], [True]], "a truth value"),
        ([0, 1], [[5]], "a list for each of 2 slots, got 1"),
        ([0, 7], [[5], [6]], "slot 7 is empty or not in"),
    ],
)
def test_commit_takes_token_ids_or_nothing(slots, tokens, message):
    here = slots_of({"presence_penalty": 1.0}, {"mirostat": 2})
    with pytest.raises(ValueError, match=message):
        here.commit(slots, tokens)
    assert [here[i].num_output for i in range(2)] == [0, 0]
    assert here[0].history.tokens == [1, 2]
    here.commit(np.array([0]), [torch.tensor([3, 4])])
    assert here[0].history.tokens == [1, 2, 3, 4]
    assert all(type(token) is int for token in here[0].history.tokens)


def test_tokens_are_what_commit_takes_also_of_a_step_in_which_some_fail():
    slots = slots_of({}, {}, {})
    logits = torch.zeros(6, V)
    logits[:, 7] = 50.0
    logits[3] = math.nan
    sampled = Sampler(slots)(logits, Rows.drafted([0, 1, 2], None, [[7, 3], [], [7]]))
    assert sampled.status.tolist() == [OK, NAN, OK]
    assert sampled.tokens() == [[7, 7], [], [7, 7]]
    slots.commit([0, 1, 2], sampled.tokens())
    assert [slots[i].num_output for i in range(3)] == [2, 0, 2]


def test_positions_follow_what_the_slots_count():
    """The same as those that are given; a constant one can't come about by leaving it out."""
    slots = slots_of({}, {"presence_penalty": 0.5})
    logits = torch.zeros(2, V)
    for step in range(5):
        sampled = Sampler(slots)(logits, Rows.plain([0, 1], [0, 1]))
        given = Sampler(slots)(logits, Rows.plain([0, 1], [0, 1], [2 + step] * 2))
        assert sampled.tokens() == given.tokens()
        slots.commit([0, 1], sampled.tokens())
    slots.rewind(0, 3)
    slots.fork(1, 2, key=9)
    rows = Rows.drafted([0, 1, 2], None, [[4], [], [5, 6]])
    assert slots.positions(rows).tolist() == [4, 5, 7, 7, 8, 9]
    drawn = {tuple(Sampler(slots)(logits[:1], Rows.plain([0], [0])).tokens()[0]) for _ in range(3)}
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rows.plain([0], [0], [1.5]), "position must hold 1 whole numbers"),
        (lambda: Rows.plain([0], [0], [True]), "position must hold 1 whole numbers"),
        (lambda: Rows.plain([0], [0, 1], [1]), "source must hold 1 whole numbers"),
        (lambda: Rows.plain([0], [0], ["a"]), "position must hold 1 whole numbers"),
        (lambda: Rows.plain([[0]], [0], [1]), "slot must hold 1 whole numbers"),
        (lambda: Rows.plain([0], [0], [2**70]), "position must hold 1 whole numbers"),
        (lambda: Rows.plain([0], [0], [1], mask=[0.0]), "mask must hold 1 whole numbers"),
        (lambda: Rows.drafted([0], [1], [[2.0]]), "drafts must hold 2 whole numbers"),
        (lambda: Rows.drafted([0, 1], [1], [[2], []]), "position must hold 2 whole numbers"),
        (lambda: Rows.drafted([0], [1, 2], [[2]]), "position must hold 1 whole numbers"),
        (
            lambda: Rows.drafted([0], [1], [[2]], ["best"]),
            "rule must hold 1 names out of exact, rejection, .* got 'best'",
        ),
        (lambda: Rows.drafted([0], [1], [[2]], []), "rule must hold 1 names .* got 0 names"),
        (
            lambda: replace(Rows.plain([0], [0], [1]), slot=torch.zeros(1, dtype=torch.int32)),
            "slot must be contiguous int64",
        ),
        (
            lambda: replace(Rows.plain([0, 0], [0, 0]), position=torch.zeros(4, dtype=torch.int64)[::2]),
            "position must be contiguous",
        ),
        (
            lambda: replace(Rows.plain([0], [0], [1]), rule=torch.zeros(1, dtype=torch.int64)),
            "rule must be contiguous int32",
        ),
    ],
)
def test_rows_that_are_none(make, message):
    with pytest.raises(ParameterError, match=message):
        make()


def proposals(*row: float) -> torch.Tensor:
    q = torch.full((2, V), 1 / V)
    q[0, : len(row)] = torch.tensor(row)
    return q


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (proposals(math.nan), "row 0 adds up to nan"),
        (proposals(0.5), "row 0 adds up to 1.47"),
        (proposals(-0.1, 0.15), "-0.1.* as its least"),
        (proposals(math.inf), "row 0 adds up to inf"),
        (torch.zeros(2, V), "row 0 adds up to 0"),
        (proposals().double(), "proposals must be float32"),
        (proposals()[:1], r"proposals must be float32 \[2, V\]"),
        (torch.full((2, V + 1), 1 / (V + 1)), r"proposals must be contiguous float32 \[2, 40\]"),
    ],
)
def test_proposals_that_are_no_distributions(q, message):
    slots = slots_of({})
    with pytest.raises(ValueError, match=message):
        Sampler(slots)(torch.zeros(2, V), Rows.drafted([0], None, [[3]], ["rejection"], q))


def test_proposals_within_the_tolerance_and_those_of_bonus_rows_are_taken():
    q = proposals() * (1 + 9e-4)
    q[1] = math.nan
    assert Sampler(slots_of({}))(
        torch.zeros(2, V), Rows.drafted([0], None, [[3]], ["rejection"], q)
    ).status.tolist() == [OK]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("n", 2),
        ("banned_strings", ("x",)),
        ("banned_regex", ("x",)),
        ("max_tokens", 5),
        ("stop_token_ids", (3,)),
        ("ignore_eos", True),
        ("stop", ("x",)),
        ("stop_regex", ("x",)),
        ("include_stop_str_in_output", True),
        ("guidance_scale", 2.0),
        ("prompt_logprobs", 1),
        ("skip_special_tokens", False),
        ("shown_token_ids", (3,)),
        ("output_kind", "final"),
    ],
)
def test_fields_that_nothing_here_acts_on_are_refused_and_say_what_to_use(field, given):
    slots, params = Slots(1, V), SamplingParams(**{field: given})
    with pytest.raises(
        ParameterError, match=f"{field} has no effect in the sampler: {CALLER_FIELDS[field][:20]}"
    ) as caught:
        slots.add(0, params, key=1, prompt=[1])
    assert caught.value.param == field
    slots.add(0, params, key=1, prompt=[1], handled_by_caller=CALLER_FIELDS)


def test_what_is_elsewhere_are_fields_and_min_tokens_reads_two_of_them():
    assert CALLER_FIELDS.keys() <= NEUTRAL.keys()
    Slots(1, V).add(0, SamplingParams(min_tokens=2, stop_token_ids=(3,), ignore_eos=True), key=1, prompt=[1])


def test_a_seed_is_the_key_or_refused_beside_another():
    slots = Slots(3, V)
    slots.add(0, SamplingParams(seed=7), prompt=[1])
    assert slots[0].key == request_key(7, 0)
    slots.add(1, SamplingParams(seed=7), key=request_key(7, 0), prompt=[1])
    with pytest.raises(ParameterError, match="seed 7 has no effect beside key 8"):
        slots.add(2, SamplingParams(seed=7), key=8, prompt=[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": [1.5]}, "prompt must be a list of whole numbers"),
        ({"prompt": [True]}, "prompt must be a list"),
        ({"prompt": 5}, "prompt must be a list"),
        ({"prompt": [[1]]}, "prompt must be a list"),
        ({"prompt": "abc"}, "prompt must be a list"),
        ({"prompt": [V]}, "prompt must be .* in 0 … 39, got values from 40"),
        ({"output": [-1]}, "output must be .* in 0 … 39, got values from -1"),
        ({"eos_token_ids": [-1]}, "eos_token_ids must be"),
        ({"key": 2**63}, "key must be an integer of 64 bits"),
        ({"key": 1.5}, "key must be an integer of 64 bits"),
    ],
)
def test_join_takes_ids_and_a_key(change, message):
    slots = Slots(1, V)
    with pytest.raises(ParameterError, match=message):
        slots.add(0, SamplingParams(presence_penalty=1.0), **({"key": 1, "prompt": [1]} | change))
    slots.add(0, SamplingParams(presence_penalty=1.0), key=1, prompt=np.array([1, 2]), eos_token_ids=[V + 3])
    assert slots[0].history.tokens == [1, 2]


def test_bans_work_without_having_been_announced():
    """Before, a request without banned_strings drew the banned token again."""
    slots = slots_of({"temperature": 0.0})
    row = torch.zeros(1, V)
    row[0, 5], row[0, 6] = 9.0, 8.0
    slots.ban(0, 5)
    assert Sampler(slots)(row, Rows.plain([0], [0])).tokens() == [[6]]
    slots.commit([0], [[6]])
    assert Sampler(slots)(row, Rows.plain([0], [0])).tokens() == [[5]]
    for token in (-1, V, 1.5):
        with pytest.raises(ParameterError, match="token"):
            slots.ban(0, token)
        with pytest.raises(ParameterError, match="tokens"):
            slots.force(0, [token])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((-1, V), r"num_slots must be an integer in \[0, "),
        ((True, V), "num_slots must be an integer"),
        ((1, "a"), r"vocab_size must be an integer in \[1, .* got 'a'"),
        ((1, 0), "vocab_size must be an integer"),
    ],
)
def test_sizes_that_are_none(sizes, message):
    with pytest.raises(ParameterError, match=message):
        Slots(*sizes)


def test_exclusions_work_without_having_been_announced_and_in_another_slot():
    slots = slots_of({"temperature": 0.0}, {"temperature": 0.0})
    row = torch.zeros(1, V)
    row[0, 5], row[0, 6] = 9.0, 8.0
    slots.exclude(0, 5)
    sequence_state = slots[0].sequence_state
    assert Sampler(slots)(row, Rows.plain([0], [0])).tokens() == [[6]]
    slots.remove(1)
    slots.add(1, SamplingParams(temperature=0.0), key=1, prompt=[1], sequence_state=sequence_state)
    assert Sampler(slots)(row, Rows.plain([1], [0])).tokens() == [[6]]
    for token in (-1, V, 1.5):
        with pytest.raises(ParameterError, match="token"):
            slots.exclude(0, token)


def test_the_sampler_reads_only_what_it_can():
    slots = slots_of({}, {})
    rows = Rows.plain([0, 1], [0, 1])
    with pytest.raises(ParameterError, match="backend must be one of"):
        Sampler(slots, "fast")  # pyright: ignore[reportArgumentType]
    for logits, message in (
        (np.zeros((2, V), dtype=np.float32), "logits must be a Tensor, got ndarray"),
        (torch.zeros(2, V + 1), "40 columns"),
        (torch.zeros(V), "40 columns"),
        (torch.zeros(2, V, dtype=torch.float64), "bf16, f16 or f32"),
        (torch.zeros(2, V, device="meta"), "on meta"),
        (torch.zeros(1, V), "source must be in 0 … 0, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Sampler(slots)(logits, rows)
    both = replace(Rows.drafted([0], [2], [[1]]), slot=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="slot of a request's rows"):
        Sampler(slots)(torch.zeros(2, V), both)
    assert Sampler(slots)(torch.zeros(0, V), Rows.plain([], [])).tokens() == []
    assert Sampler(slots)(torch.zeros(V, 2).T, rows).tokens() == Sampler(slots)(torch.zeros(2, V), rows).tokens()


def test_a_fork_keeps_the_bans_and_the_mask_it_is_given():
    for sequence_state in (
        SequenceState(banned={0: {5}}),
        SequenceState(mask=np.array([~(1 << 5) & 0xFFFFFFFF], dtype=np.uint32)),
    ):
        slots = Slots(2, 32)
        slots.add(0, SamplingParams(temperature=0), key=1, prompt=[1])
        slots.fork(0, 1, key=2, sequence_state=sequence_state)
        logits = torch.zeros(2, 32)
        logits[:, 5], logits[:, 6] = 9.0, 8.0
        assert Sampler(slots)(logits, Rows.plain([0, 1], [0, 1])).tokens() == [[5], [6]]


def test_a_mask_that_is_not_in_a_row_is_refused():
    slots = Slots(1, 64)
    with pytest.raises(ParameterError, match="contiguous"):
        slots.add(
            0, SamplingParams(), key=1, prompt=[1], sequence_state=SequenceState(mask=np.zeros(4, dtype=np.uint32)[::2])
        )
