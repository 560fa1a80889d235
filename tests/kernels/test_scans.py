"""Scans along sequences: the C++ kernels against torch, and bits that no cut of a prompt and no neighbour changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from tailrace import kernels
from tailrace.kernels import ChannelScan, Convolution, HeadScan, Walk
from tailrace.kernels.dispatch import find

Given = HeadScan | ChannelScan | Convolution
Part = tuple[int, int, int]  # sequence, first position, end
SEQUENCES, LENGTH, ROWS = 3, 40, 3
TOKENS = SEQUENCES * LENGTH


def make_numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def make_heads(dtype: torch.dtype, key_dim: int, value_dim: int, **options: Any) -> HeadScan:
    heads, groups, per_row = 4, 2, options.pop("per_row", False)
    decay = (TOKENS, heads, key_dim) if per_row else (TOKENS, heads)
    wide = make_numbers(TOKENS, 3 * groups * key_dim, dtype=dtype)  # rows of a wider tensor, as models have them
    query, key, _ = (part.unflatten(-1, (groups, key_dim)) for part in wide.chunk(3, -1))
    value = make_numbers(TOKENS, heads, value_dim, dtype=dtype)
    return HeadScan(query, key, value, -torch.rand(decay), torch.rand(TOKENS, heads), dtype, **options)


def make_channels(dtype: torch.dtype, channels: int, states: int) -> ChannelScan:
    x, b, c = (make_numbers(TOKENS, width, dtype=dtype) for width in (channels, states, states))
    return ChannelScan(x, b, c, torch.rand(TOKENS, channels), -torch.rand(channels, states))


def make_convolution(dtype: torch.dtype, channels: int, width: int, silu: bool, bias: bool) -> Convolution:
    x, weight = make_numbers(TOKENS, channels, dtype=dtype), make_numbers(channels, width, dtype=dtype)
    return Convolution(x, weight, make_numbers(channels, dtype=dtype) if bias else None, silu)


DELTA = {"delta": True, "normalize": True}
MAKERS: dict[str, Callable[[torch.dtype], Given]] = {
    "delta": lambda dtype: make_heads(dtype, 32, 64, scale=32**-0.5, **DELTA),
    "delta per row": lambda dtype: make_heads(dtype, 32, 48, scale=0.3, per_row=True, **DELTA),
    "delta, odd": lambda dtype: make_heads(dtype, 7, 37, scale=0.5, **DELTA),
    "mamba2": lambda dtype: make_heads(dtype, 128, 64, skip=torch.randn(4)),
    "mamba2, odd": lambda dtype: make_heads(dtype, 5, 9),
    "mamba": lambda dtype: make_channels(dtype, 71, 16),
    "mamba, short": lambda dtype: make_channels(dtype, 32, 3),
    "convolution": lambda dtype: make_convolution(dtype, 530, 4, True, True),
    "convolution, plain": lambda dtype: make_convolution(dtype, 3, 3, False, False),
    "convolution, wide": lambda dtype: make_convolution(dtype, 9, 6, True, False),
    "convolution, narrow": lambda dtype: make_convolution(dtype, 9, 1, False, True),
}
OPERATION: dict[type, tuple[str, set[str]]] = {  # the name, and the fields that have no row per token
    HeadScan: ("scan_heads", {"skip"}),
    ChannelScan: ("scan_channels", {"rate"}),
    Convolution: ("convolve", {"weight", "bias"}),
}


def make_memory(given: Given) -> torch.Tensor:
    """Return memory of all slots. Its numbers must not matter."""
    if isinstance(given, HeadScan):
        shape, dtype = (given.value.shape[1], given.key.shape[2], given.value.shape[2]), torch.float32
    elif isinstance(given, ChannelScan):
        shape, dtype = (given.rate.shape[1], given.rate.shape[0]), torch.float32
    else:
        shape, dtype = (given.weight.shape[1] - 1, given.weight.shape[0]), given.x.dtype
    return torch.full((SEQUENCES * ROWS, *shape), float("nan"), dtype=dtype)


def take_rows(given: Given, rows: list[int]) -> Given:
    shared = OPERATION[type(given)][1]
    parts = {field.name: getattr(given, field.name) for field in fields(given)}
    tensors = {n: v[rows] for n, v in parts.items() if isinstance(v, torch.Tensor) and n not in shared}
    return replace(given, **tensors)


def make_walk(parts: list[Part]) -> Walk:
    """Sequence i has slot SEQUENCES − 1 − i."""
    counts = torch.tensor([0] + [end - first for _, first, end in parts])
    ends = torch.tensor([end for _, _, end in parts])
    slots = torch.tensor([SEQUENCES - 1 - owner for owner, _, _ in parts])
    return Walk(counts.cumsum(0), ends, slots, ROWS, torch.device("cpu"))


def compute(given: Given, passes: list[list[Part]], backend: str = "cpu") -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return each sequence's results over all passes, and the memory after them."""
    memory, found = make_memory(given), [[] for _ in range(SEQUENCES)]
    for parts in passes:
        rows = [owner * LENGTH + j for owner, first, end in parts for j in range(first, end)]
        out = find(OPERATION[type(given)][0], backend)(take_rows(given, rows), memory, make_walk(parts))
        for (owner, _, _), part in zip(parts, out.split([end - first for _, first, end in parts]), strict=True):
            found[owner].append(part)
    return [torch.cat(parts) for parts in found if parts], memory


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
    given = MAKERS[name](dtype)
    ours, memory = compute(given, MIXED)
    theirs, expected = compute(given, MIXED, "reference")
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(memory, expected, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MAKERS)
def test_cuts_and_neighbours_change_no_bit(name, threads, dtype):
    given = MAKERS[name](dtype)
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
    given = MAKERS[name](dtype)
    _, memory = compute(given, [[(1, 0, LENGTH)]])
    for position in range(LENGTH - ROWS + 1, LENGTH + 1):
        _, expected = compute(given, [[(1, 0, position)]])
        entry = ROWS + position % ROWS
        assert not expected[entry].isnan().any()
        assert torch.equal(memory[entry], expected[entry])


def test_a_fault_in_one_token_is_seen(dtype):
    given = MAKERS["delta"](dtype)
    assert isinstance(given, HeadScan)
    whole, _ = compute(given, [WHOLE])
    given.factor[LENGTH + 7, 2] += 0.25
    other, _ = compute(given, [WHOLE])
    assert [torch.equal(a, b) for a, b in zip(whole, other, strict=True)] == [True, False, True]
    assert torch.equal(whole[1][:7], other[1][:7])


def test_large_and_missing_decays():
    """A decay of −inf forgets everything; one of 0 forgets nothing."""
    torch.manual_seed(0)
    given = make_heads(torch.float32, 16, 16)
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
    given = make_heads(torch.float32, 32, 64)
    with pytest.raises(ValueError, match=words):
        kernels.scan_heads(replace(given, **change), make_memory(given), make_walk(WHOLE))


def test_memory_and_walks_that_do_not_fit_are_refused():
    given = make_heads(torch.float32, 32, 64)
    memory = make_memory(given)
    for wrong in (memory[:8], memory[:, :3], memory.transpose(0, 1).contiguous().transpose(0, 1)):
        with pytest.raises(ValueError, match="memory must be"):
            kernels.scan_heads(given, wrong, make_walk(WHOLE))
    with pytest.raises(ValueError, match="must have 120 tokens"):
        kernels.scan_heads(given, memory, make_walk(WHOLE[:2]))
