"""Scans along sequences: the C++ kernels against torch, and bits that no cut of a prompt and no neighbour changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kernels.scan_cases import (
    MAKERS,
    ROWS,
    SEQUENCES,
    Given,
    Part,
    compute_passes,
    find_operation,
    make_heads,
    make_memory,
    make_walk,
)
from tailrace import kernels
from tailrace.kernels import HeadScan

LENGTH = 40
TOKENS = SEQUENCES * LENGTH


def compute(given: Given, passes: list[list[Part]], backend: str = "cpu") -> tuple[list[torch.Tensor], torch.Tensor]:
    return compute_passes(given, passes, LENGTH, find_operation(given, backend))


WHOLE: list[Part] = [(i, 0, LENGTH) for i in range(SEQUENCES)]


def cut_alone(owner: int, *cuts: int) -> list[list[Part]]:
    return [[(owner, first, end)] for first, end in pairwise((0, *cuts, LENGTH))]


MIXED: list[list[Part]] = [
    [(1, 0, 9), (0, 0, 1)],
    [(0, 1, 2), (2, 0, 33), (1, 9, 10)],
    [(2, 33, 34), (0, 2, 38), (1, 10, 11)],
    [(1, 11, 40), (0, 38, 40), (2, 34, 40)],
]


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    torch.manual_seed(0)
    return request.param


@pytest.mark.parametrize("name", MAKERS)
def test_kernels_agree_with_torch(name, dtype):
    given = MAKERS[name](TOKENS, dtype)
    ours, memory = compute(given, MIXED)
    theirs, expected = compute(given, MIXED, "reference")
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(memory, expected, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MAKERS)
def test_cuts_and_neighbours_change_no_bit(name, threads, dtype):
    given = MAKERS[name](TOKENS, dtype)
    kernels.set_num_threads(threads)
    whole, memory = compute(given, [WHOLE])
    mixed, again = compute(given, MIXED)
    assert all(map(torch.equal, whole, mixed))
    last = [slot * ROWS + LENGTH % ROWS for slot in range(SEQUENCES)]
    assert torch.equal(memory[last], again[last])
    for cuts in ((), (1,), (39,), (3, 4, 5, 21), range(1, LENGTH)):
        [alone], _ = compute(given, cut_alone(1, *cuts))
        assert torch.equal(alone, whole[1]), cuts


@pytest.mark.parametrize("name", MAKERS)
def test_the_last_states_stay_in_memory(name, dtype):
    """The state after each of the last positions is what a shorter pass leaves."""
    given = MAKERS[name](TOKENS, dtype)
    _, memory = compute(given, [[(1, 0, LENGTH)]])
    for position in range(LENGTH - ROWS + 1, LENGTH + 1):
        _, expected = compute(given, [[(1, 0, position)]])
        entry = ROWS + position % ROWS
        assert not expected[entry].isnan().any()
        assert torch.equal(memory[entry], expected[entry])


def test_a_fault_in_one_token_is_seen(dtype):
    given = MAKERS["delta"](TOKENS, dtype)
    assert isinstance(given, HeadScan)
    whole, _ = compute(given, [WHOLE])
    given.factor[LENGTH + 7, 2] += 0.25
    other, _ = compute(given, [WHOLE])
    assert [torch.equal(a, b) for a, b in zip(whole, other, strict=True)] == [True, False, True]
    assert torch.equal(whole[1][:7], other[1][:7])


def test_large_and_missing_decays():
    """A decay of −inf forgets everything; one of 0 forgets nothing."""
    torch.manual_seed(0)
    given = make_heads(TOKENS, torch.float32, 16, 16)
    forgets = replace(given, decay=torch.full_like(given.decay, -float("inf")))
    out, _ = compute(forgets, [WHOLE])
    weight = (given.query * given.key).sum(-1).repeat_interleave(2, 1) * given.factor
    torch.testing.assert_close(torch.cat(out), weight[..., None] * given.value, atol=1e-4, rtol=1e-4)
    keeps = replace(given, decay=torch.zeros_like(given.decay))
    out, _ = compute(keeps, [[(0, 0, LENGTH)]])
    states = torch.einsum("tgk,thv->tghkv", given.key, given.value * given.factor[..., None])[:LENGTH]
    states = torch.stack([states[:, h // 2, h] for h in range(4)], 1).cumsum(0)
    expected = torch.einsum("thk,thkv->thv", given.query[:LENGTH].repeat_interleave(2, 1), states)
    torch.testing.assert_close(out[0], expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.zeros(TOKENS, 2, 31)}, "query must be torch.float32"),
        ({"key": torch.zeros(TOKENS, 3, 32), "query": torch.zeros(TOKENS, 3, 32)}, "no multiple of the key's 3"),
        ({"decay": torch.zeros(TOKENS, 5)}, "decay must be torch.float32"),
        ({"factor": torch.zeros(TOKENS, 4, dtype=torch.float64)}, "factor must be torch.float32"),
        ({"skip": torch.zeros(3)}, "skip must be torch.float32"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, words):
    given = make_heads(TOKENS, torch.float32, 32, 64)
    with pytest.raises(ValueError, match=words):
        kernels.scan_heads(replace(given, **change), make_memory(given), make_walk(WHOLE))


def test_memory_and_walks_that_do_not_fit_are_refused():
    given = make_heads(TOKENS, torch.float32, 32, 64)
    memory = make_memory(given)
    for wrong in (memory[:8], memory[:, :3], memory.transpose(0, 1).contiguous().transpose(0, 1)):
        with pytest.raises(ValueError, match="memory must be"):
            kernels.scan_heads(given, wrong, make_walk(WHOLE))
    with pytest.raises(ValueError, match="must have 120 tokens"):
        kernels.scan_heads(given, memory, make_walk(WHOLE[:2]))
