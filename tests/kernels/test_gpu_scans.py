"""The GPU's scans along sequences: close to the exact recurrence in float64, and bits that no cut of a prompt, no
neighbour, no padding and no stride changes."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import pytest
import torch

from kernels.backends import DEVICES
from kernels.scan_cases import (
    MAKERS,
    OPERATION,
    ROWS,
    SEQUENCES,
    Given,
    Part,
    compute_passes,
    find_operation,
    make_channels,
    make_convolution,
    make_heads,
    make_memory,
    make_walk,
    move_given,
    take_rows,
)
from tailrace.kernels import ChannelScan, Convolution, HeadScan, PlacedWalk, Walk
from tailrace.kernels.dispatch import choose, find
from tailrace.kernels.gpu import scans
from tailrace.kernels.walk import WalkPlaces

DEVICE = torch.device(DEVICES["gpu"])
HARDWARE = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
LENGTH = 50 if DEVICE.type == "cuda" else 8
TOKENS = SEQUENCES * LENGTH
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}  # the interpreter cuts bf16 off
WHOLE: list[Part] = [(i, 0, LENGTH) for i in range(SEQUENCES)]
MIXED: list[list[Part]] = [
    [(1, 0, 3), (0, 0, 1)],
    [(0, 1, 2), (2, 0, 6), (1, 3, 4)],
    [(2, 6, 7), (0, 2, 5), (1, 4, 6)],
    [(1, 6, LENGTH), (0, 5, LENGTH), (2, 7, LENGTH)],
]


def make(name: str, dtype: torch.dtype) -> Given:
    torch.manual_seed(0)
    return move_given(MAKERS[name](TOKENS, dtype), DEVICE)


def compute(given: Given, passes: list[list[Part]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    return compute_passes(given, passes, LENGTH, find_operation(given, "gpu"))


def rows_of(owner: int) -> list[int]:
    return list(range(owner * LENGTH, (owner + 1) * LENGTH))


# ---- the law


def scan_exactly(given: Given) -> torch.Tensor:
    """Return the result for all tokens as one sequence, in float64 and without our code."""
    named = {field.name: getattr(given, field.name) for field in fields(given)}
    wide = {name: x.double().cpu() if isinstance(x, torch.Tensor) else x for name, x in named.items()}
    if isinstance(given, Convolution):
        kernel, width = wide["weight"][:, None], given.weight.shape[1]
        out = torch.conv1d(wide["x"].T[None], kernel, wide["bias"], padding=width - 1, groups=len(kernel))
        out = out[0, :, : len(given.x)].T.to(given.x.dtype)
        return (torch.nn.functional.silu(out.double()) if given.silu else out).to(given.x.dtype)
    results = []
    if isinstance(given, ChannelScan):
        h = torch.zeros_like(wide["rate"])
        for x, b, c, step in zip(wide["x"], wide["b"], wide["c"], wide["step"], strict=True):
            h = h * torch.exp(wide["rate"] * step[:, None]) + (step * x)[:, None] * b
            results.append(h @ c)
        return torch.stack(results).float()
    group = given.value.shape[1] // given.key.shape[1]
    query, key = (wide[name].repeat_interleave(group, 1) for name in ("query", "key"))
    if given.normalize:
        query, key = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    decay = wide["decay"] if given.decay.dim() == 3 else wide["decay"][..., None].expand_as(key)
    state = torch.zeros(*key.shape[1:], given.value.shape[2], dtype=torch.float64)
    for q, k, v, g, f in zip(query, key, wide["value"], decay.exp(), wide["factor"], strict=True):
        state = state * g[..., None]
        update = (v - torch.einsum("hkv,hk->hv", state, k) if given.delta else v) * f[:, None]
        state = state + k[..., None] * update[:, None]
        out = given.scale * torch.einsum("hkv,hk->hv", state, q)
        results.append(out if wide["skip"] is None else out + v * wide["skip"][:, None])
    return torch.stack(results).to(given.dtype)


def differs(ours: torch.Tensor, exact: torch.Tensor) -> bool:
    bound = TOLERANCE[exact.dtype]
    return not torch.allclose(ours.cpu().float(), exact.float(), atol=bound, rtol=bound)


@pytest.mark.few(11)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_results_are_those_of_the_exact_recurrence(name, dtype):
    given = make(name, dtype)
    ours, memory = compute(given, MIXED)
    for owner, found in enumerate(ours):
        exact = scan_exactly(take_rows(given, rows_of(owner)))
        assert found.dtype == exact.dtype
        assert not differs(found, exact)
    assert memory.dtype == (dtype if isinstance(given, Convolution) else torch.float32)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("delta", {"delta": False}),
        ("delta", {"normalize": False}),
        ("delta", {"scale": 1.0}),
        ("mamba2", {"skip": None}),
        ("convolution", {"silu": False}),
        ("convolution", {"bias": None}),
    ],
)
def test_another_law_is_seen(name, change):
    given = take_rows(make(name, torch.float32), rows_of(0))
    exact = scan_exactly(replace(given, **change))
    assert differs(find_operation(given, "gpu")(given, make_memory(given), make_walk([(0, 0, LENGTH)], DEVICE)), exact)


def test_states_stay_in_float32():
    """Many tokens of bfloat16 with little decay: a state in bfloat16 would lose its small updates."""
    torch.manual_seed(1)
    given = make_heads(TOKENS, torch.bfloat16, 16, 8)
    ones = torch.ones_like(given.query)
    given = replace(given, query=ones, key=ones, value=torch.ones_like(given.value), dtype=torch.float32)
    given = move_given(replace(given, decay=torch.zeros_like(given.decay), factor=given.factor * 0 + 1 / 512), DEVICE)
    [first, *_], _ = compute(given, [[(0, 0, 1)], [(0, 1, LENGTH)]])
    expected = torch.arange(1, LENGTH + 1)[:, None, None] * 16 / 512
    assert torch.equal(first.cpu(), expected.expand(LENGTH, 4, 8))


# ---- bits


def cut_alone(owner: int, *cuts: int) -> list[list[Part]]:
    return [[(owner, first, end)] for first, end in pairwise((0, *cuts, LENGTH))]


def find_differences(given: Given, run) -> list[str]:
    """Return the ways to cut and to batch the tokens that change a bit of a result or of the last state."""
    whole, memory = compute_passes(given, [WHOLE], LENGTH, run)
    mixed, again = compute_passes(given, MIXED, LENGTH, run)
    last = [slot * ROWS + LENGTH % ROWS for slot in range(SEQUENCES)]
    found = [] if all(map(torch.equal, whole, mixed)) else ["mixed"]
    found += [] if torch.equal(memory[last], again[last]) else ["states"]
    for cuts in ((1,), tuple(range(1, LENGTH))):
        [alone], _ = compute_passes(given, cut_alone(1, *cuts), LENGTH, run)
        found += [] if torch.equal(alone, whole[1]) else [str(cuts)]
    return found


@pytest.mark.few(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_cuts_and_neighbours_change_no_bit(name, dtype):
    given = make(name, dtype)
    assert find_differences(given, find_operation(given, "gpu")) == []


def test_states_that_lose_bits_between_passes_are_seen():
    given = make("mamba2, odd", torch.float32)

    def planted(part: Given, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
        out = find("scan_heads", "gpu")(part, memory, walk)
        memory.copy_(memory.bfloat16().float())
        return out

    assert set(find_differences(given, planted)) > {"mixed", "(1,)"}


def test_another_order_of_sums_in_decode_steps_is_seen():
    given = make("delta", torch.float32)

    def planted(part: Given, memory: torch.Tensor, walk: Walk) -> torch.Tensor:
        assert isinstance(part, HeadScan)
        if len(part.value) > 1:
            return find("scan_heads", "gpu")(part, memory, walk)
        turned = memory.flip(2)
        out = find("scan_heads", "gpu")(replace(part, query=part.query.flip(2), key=part.key.flip(2)), turned, walk)
        memory.copy_(turned.flip(2))
        return out

    assert str(tuple(range(1, LENGTH))) in find_differences(given, planted)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MAKERS)
def test_rejected_drafts_leave_no_trace(name):
    """The state after each of the last positions is what a shorter pass leaves, so a sequence can go back to it."""
    given = make(name, torch.float32)
    run = find_operation(given, "gpu")
    _, memory = compute(given, [[(1, 0, LENGTH)]])
    for position in range(LENGTH - ROWS + 1, LENGTH + 1):
        _, expected = compute(given, [[(1, 0, position)]])
        assert not expected[ROWS + position % ROWS].isnan().any()
        assert torch.equal(memory[ROWS + position % ROWS], expected[ROWS + position % ROWS])
    [alone], _ = compute(given, [[(1, 0, LENGTH)]])
    memory, rows, back = make_memory(given), rows_of(1), ROWS - 1
    run(take_rows(given, rows[:-back]), memory, make_walk([(1, 0, LENGTH - back)], DEVICE))
    run(take_rows(given, rows[:back]), memory, make_walk([(1, LENGTH - back, LENGTH)], DEVICE))  # drafts
    last = run(take_rows(given, rows[-back:]), memory, make_walk([(1, LENGTH - back, LENGTH)], DEVICE))
    assert torch.equal(last, alone[-back:])
    if memory.numel():  # the planted fault: one draft more than the ring holds
        run(take_rows(given, rows[: back + 1]), memory, make_walk([(1, LENGTH - back, LENGTH + 1)], DEVICE))
        last = run(take_rows(given, rows[-back:]), memory, make_walk([(1, LENGTH - back, LENGTH)], DEVICE))
        assert not torch.equal(last, alone[-back:])


def spread(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with other strides and at an odd address."""
    wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype, device=x.device)
    wide[..., 1::2] = x
    return wide[..., 1::2]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MAKERS)
def test_strides_and_addresses_change_no_bit(name):
    given = make(name, torch.bfloat16)
    run, walk = find_operation(given, "gpu"), make_walk(WHOLE, DEVICE)
    tensors = {f.name: x for f in fields(given) if isinstance(x := getattr(given, f.name), torch.Tensor)}
    expected = run(given, make_memory(given), walk)
    ways = {
        "strided": {n: spread(x) for n, x in tensors.items()},
        "turned": {n: x.mT.contiguous().mT if x.dim() > 1 else x for n, x in tensors.items()},
        "shifted": {n: torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x) for n, x in tensors.items()},
    }
    for way, others in ways.items():
        assert torch.equal(run(replace(given, **others), make_memory(given), walk), expected), way
    shared = replace(given, **{n: x[:1].expand_as(x) for n, x in tensors.items() if n not in OPERATION[type(given)][1]})
    other = run(shared, make_memory(given), walk)
    assert torch.equal(other[0], expected[0])
    assert not torch.equal(other, expected)


# ---- sequences without tokens, and padding


def place(starts: list[int], ends: list[int], slots: list[int]) -> PlacedWalk:
    wide = [torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (starts, ends)]
    return PlacedWalk(WalkPlaces(*wide, torch.tensor(slots, device=DEVICE)), ROWS)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MAKERS)
def test_sequences_without_tokens_have_no_effect(name):
    given = take_rows(make(name, torch.float32), [*range(4), *range(LENGTH, LENGTH + 3)])
    run = find_operation(given, "gpu")
    expected_memory, memory = make_memory(given), make_memory(given)
    expected = run(given, expected_memory, place([0, 4, 7], [4, 3], [0, 2]))
    for starts in ([0, 0, 4, 7], [0, 4, 4, 7], [0, 4, 7, 7]):
        at = next(i for i in range(3) if starts[i] == starts[i + 1])
        ends, slots = [4, 3], [0, 2]
        ends.insert(at, 5), slots.insert(at, 1)
        memory.fill_(float("nan"))
        assert torch.equal(run(given, memory, place(starts, ends, slots)), expected)
        torch.testing.assert_close(memory, expected_memory, atol=0, rtol=0, equal_nan=True)
    nothing = take_rows(given, [])
    assert len(run(nothing, memory, place([0, 0], [5], [0]))) == 0
    torch.testing.assert_close(memory, expected_memory, atol=0, rtol=0, equal_nan=True)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MAKERS)
def test_padding_gets_zeros_and_touches_no_state(name):
    """As in a CUDA graph: one token per sequence, rows of no sequence behind them, whose inputs may be anything."""
    given = take_rows(make(name, torch.float32), [0, 1, 2, 3, 4])
    run, shared = find_operation(given, "gpu"), OPERATION[type(given)][1]
    expected_memory, memory = make_memory(given).fill_(0.25), make_memory(given).fill_(0.25)
    expected = run(take_rows(given, [0, 1]), expected_memory, place([0, 1, 2], [6, 1], [2, 0]))
    for name in [f.name for f in fields(given) if f.name not in shared]:
        if isinstance(x := getattr(given, name), torch.Tensor):
            x[2:] = float("nan")
    starts, ends, slots = [0, 1, 2, 3, 4, 5], [6, 1, 0, 7, 7], [2, 0, 1, -1, SEQUENCES]
    out = run(given, memory, place(starts, ends, slots))
    assert torch.equal(out[:2], expected)
    assert torch.equal(memory, expected_memory)
    assert not out[2:].any()
    out = run(given, memory, place(starts, [6, 1, 1, 7, 7], slots))  # the planted fault: a row that is no padding
    assert out[2].isnan().any()
    assert not out[3:].any()


def test_a_placed_walk_is_the_walk_of_the_host():
    given = make("delta, odd", torch.float32)
    first, second = make_memory(given), make_memory(given)
    walk = make_walk(WHOLE, DEVICE)
    expected = find("scan_heads", "gpu")(given, first, walk)
    starts, ends, slots = walk.places
    assert torch.equal(find("scan_heads", "gpu")(given, second, PlacedWalk(walk.places, ROWS)), expected)
    assert torch.equal(first.nan_to_num(7), second.nan_to_num(7))
    assert (starts.dtype, ends.dtype, slots.dtype) == (torch.int32, torch.int32, torch.int64)
    assert (starts.tolist(), ends.tolist()) == ([i * LENGTH for i in range(SEQUENCES + 1)], [LENGTH] * SEQUENCES)


# ---- shapes, bad input, dispatch


@pytest.mark.parametrize("rows", [1, 3, 16, 100, 128, 256, 1000, 2048])
@pytest.mark.parametrize("columns", [1, 37, 64, 128, 8192])
def test_blocks_hold_whole_columns_in_registers(rows, columns):
    tile = scans.choose_tile(rows, columns, scans.HELD)
    assert tile.rows >= rows > tile.rows // 2
    assert tile.rows * tile.columns <= scans.MOST_HELD * tile.warps
    assert tile.warps == 1 or rows > 1000


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (300, 5)])
def test_states_of_any_shape(shape):
    torch.manual_seed(2)
    for given in (
        make_heads(4, torch.float32, *shape, delta=True, normalize=True),
        make_channels(4, torch.float32, *shape),
        make_convolution(4, torch.float32, shape[0], min(7, shape[1]), bias=True),
    ):
        moved = move_given(given, DEVICE)
        out = find_operation(given, "gpu")(moved, make_memory(moved), make_walk([(0, 0, 4)], DEVICE))
        assert not differs(out, scan_exactly(given))


def test_bad_input_is_refused():
    given = make("delta", torch.float32)
    assert isinstance(given, HeadScan)
    memory, walk, run = make_memory(given), make_walk(WHOLE, DEVICE), find("scan_heads", "gpu")
    for wrong in (memory[:8], memory[:, :3], memory.transpose(0, 1).contiguous().transpose(0, 1)):
        with pytest.raises(ValueError, match="memory must be"):
            run(given, wrong, walk)
    odd = torch.empty(memory.numel() + 1, device=DEVICE)[1:].view_as(memory)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        run(given, odd, walk)
    with pytest.raises(ValueError, match=f"must have {TOKENS} tokens"):
        run(given, memory, make_walk(WHOLE[:2], DEVICE))
    with pytest.raises(ValueError, match="a slot of its own"):
        run(given, memory, make_walk([(0, 0, LENGTH), (0, 0, LENGTH), (1, 0, LENGTH)], DEVICE))
    with pytest.raises(ValueError, match=r"decay must be torch\.float32"):
        run(replace(given, decay=given.decay[:, :3]), memory, walk)
    with pytest.raises(ValueError, match="memory must be contiguous"):
        run(given, wrong, PlacedWalk(walk.places, ROWS))  # the last of them


@pytest.mark.parametrize("operation", ["scan_heads", "scan_channels", "convolve"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_gpu_takes_these_kernels(operation, dtype):
    assert choose(operation, "cuda", dtype) is getattr(scans, operation)


# ---- on hardware


@HARDWARE
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(32, 16, 128, 128), (64, 8, 128, 64), (24, 1, 256, 64), (3, 3, 96, 80)])
def test_bits_at_the_sizes_of_models(shape, dtype):
    """4,000 tokens: at once, in pieces beside others, and the last 50 one by one."""
    heads, groups, key_dim, value_dim = shape
    torch.manual_seed(3)
    length, run = 4000, find("scan_heads", "gpu")

    def random(*size: int) -> torch.Tensor:
        return torch.randn(length, *size, device=DEVICE).to(dtype)

    numbers = torch.rand(2, length, heads, device=DEVICE)
    query, key, value = random(groups, key_dim), random(groups, key_dim), random(heads, value_dim)
    given = HeadScan(query, key, value, -numbers[0], numbers[1], dtype, key_dim**-0.5, delta=True, normalize=True)
    memory = torch.full((SEQUENCES * ROWS, heads, key_dim, value_dim), float("nan"), device=DEVICE)
    whole = run(given, memory, make_walk([(0, 0, length)], DEVICE))
    parts, again = [], torch.full_like(memory, float("nan"))
    for first, end in pairwise((0, 1, 700, 2048, *range(length - 50, length + 1))):
        rows = list(range(first, end))
        beside = take_rows(given, [*range(17), *rows])
        parts.append(run(beside, again, make_walk([(1, 0, 17), (0, first, end)], DEVICE))[17:])
    assert torch.equal(torch.cat(parts), whole)
    last = (SEQUENCES - 1) * ROWS + length % ROWS
    assert torch.equal(memory[last], again[last])
    assert not differs(whole[:200], scan_exactly(take_rows(given, list(range(200)))))


@HARDWARE
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_waits_and_a_graph_can_be_captured(name):
    given = take_rows(make(name, torch.bfloat16), [0, 1, 2])
    run, memory = find_operation(given, "gpu"), make_memory(given).fill_(0.5)
    walk, before = place([0, 1, 2, 3], [5, 1, 0], [2, 0, -1]), memory.clone()
    expected = run(given, memory, walk)
    after = memory.clone()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(given, memory, make_walk([(0, 4, 5), (2, 0, 1), (1, 3, 4)], DEVICE))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    memory.copy_(before)
    with torch.cuda.graph(graph):
        out = run(given, memory, walk)
    memory.copy_(before)
    graph.replay()
    assert torch.equal(out, expected)
    assert torch.equal(memory, after)
