"""What a kernel is given by address is checked first: a wrong dtype, stride or index is an error, never a wild read."""

from __future__ import annotations

import os
import time

import pytest
import torch

from tailrace import _cpu, kernels
from tailrace.errors import ParameterError
from tailrace.kernels.constants import TAKEN
from tailrace.kernels.dispatch import find
from tailrace.kernels.needs import SlotNeeds, check_rows
from tailrace.kernels.rows import Guidance, Rows

BF16 = torch.bfloat16


@pytest.fixture
def step() -> dict[str, torch.Tensor]:
    """One sequence of 16 positions in the only block; its last token asks."""
    torch.manual_seed(0)
    cache = kernels.make_cache(1, 1, 16, 32, BF16)
    key, value = torch.randn(16, 1, 32).to(BF16), torch.randn(16, 1, 32).to(BF16)
    kernels.store_kv(cache, key, value, torch.arange(16))
    return {
        "cache": cache,
        "key": key,
        "value": value,
        "query": torch.randn(1, 1, 32).to(BF16),
        "block_tables": torch.zeros(1, 1, dtype=torch.int32),
        "query_start": torch.tensor([0, 1], dtype=torch.int32),
        "kv_len": torch.tensor([16], dtype=torch.int32),
    }  # pyright: ignore[reportReturnType]


def attend(step: dict[str, torch.Tensor], **change: object) -> torch.Tensor:
    arguments = {name: step[name] for name in ("query", "cache", "block_tables", "query_start", "kv_len")}
    return kernels.paged_attention(**(arguments | {"scale": 0.2} | change))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_tables": torch.zeros(1, 1, dtype=torch.int64)}, "block_tables must be contiguous torch.int32"),
        ({"block_tables": torch.zeros(1, 4, dtype=torch.int32)[:, ::2]}, "block_tables must be contiguous"),
        ({"query_start": torch.tensor([0, 1])}, "query_start must be contiguous torch.int32"),
        ({"kv_len": torch.tensor([16])}, "kv_len must be contiguous torch.int32"),
        ({"block_tables": torch.ones(1, 1, dtype=torch.int32)}, "block_tables must name blocks of the cache, got 1"),
        ({"block_tables": -torch.ones(1, 1, dtype=torch.int32)}, "block_tables must name blocks of the cache, got -1"),
        ({"kv_len": torch.tensor([17], dtype=torch.int32)}, "kv_len must .* fit its block table, got 17"),
        ({"kv_len": torch.tensor([0], dtype=torch.int32)}, "kv_len must be at least .*, got 0"),
        ({"query_start": torch.tensor([0, 2], dtype=torch.int32)}, "query_start must go from 0 to"),
        ({"query_start": torch.tensor([0, 1, 1], dtype=torch.int32)}, r"block_tables must be \[1, B\]"),
        ({"window": -1}, "window must be at least 0, got -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attention_refuses(step, change, message):
    attend(step)
    with pytest.raises(ValueError, match=message):
        attend(step, **change)


@pytest.mark.parametrize("slot", [-1, 16, 10**12])
def test_store_refuses_slots_outside_the_cache(step, slot):
    with pytest.raises(_cpu.FieldError, match=f"slots must lie within the cache, got {slot}") as caught:
        kernels.store_kv(step["cache"], step["key"][:1], step["value"][:1], torch.tensor([slot]))
    assert caught.value.field == "slots"
    with pytest.raises(ValueError, match="slots must be contiguous"):
        kernels.store_kv(step["cache"], step["key"][:1], step["value"][:1], torch.tensor([0], dtype=torch.int32))


def test_store_changes_nothing_but_its_slots_in_any_order(step):
    before = attend(step)
    for slot in (4, 5, 15):
        kernels.store_kv(
            step["cache"], step["key"][slot : slot + 1], step["value"][slot : slot + 1], torch.tensor([slot])
        )
        assert torch.equal(attend(step), before)
    order = torch.arange(15, -1, -1)
    kernels.store_kv(step["cache"], step["key"][order], step["value"][order], order)
    assert torch.equal(attend(step), before)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_nan_query_gives_nan_and_only_there(dtype, backend):
    torch.manual_seed(0)
    cache = find("make_cache", backend)(1, 1, 16, (32, 32), dtype, torch.device("cpu"))
    find("store_kv", backend)(
        cache, torch.randn(16, 1, 32).to(dtype), torch.randn(16, 1, 32).to(dtype), torch.arange(16)
    )
    query = torch.randn(4, 1, 32).to(dtype)
    query[2] = float("nan")
    start, kv_len = torch.tensor([0, 4], dtype=torch.int32), torch.tensor([16], dtype=torch.int32)
    out = find("paged_attention", backend)(
        query, cache, torch.zeros(1, 1, dtype=torch.int32), start, kv_len, kernels.AttentionOptions(0.2)
    )
    assert out.isnan().flatten(1).all(1).tolist() == [False, False, True, False]
    assert not out[[0, 1, 3]].isnan().any()


def test_small_operations_refuse():
    x = torch.randn(2, 64).to(BF16)
    weight = torch.ones(64, dtype=BF16)
    with pytest.raises(ValueError, match="weight must be contiguous"):
        kernels.rms_norm(x, torch.ones(128, dtype=BF16)[::2], 1e-5)
    with pytest.raises(ValueError, match=r"weight must be contiguous \[64\] of torch.bfloat16"):
        kernels.add_rms_norm(x, x.clone(), weight.float(), 1e-5)
    with pytest.raises(ValueError, match="delta like it"):
        kernels.add_rms_norm(x, x.float(), weight, 1e-5)
    with pytest.raises(ValueError, match="an even number of at most 64"):
        kernels.rotary(x[:, None].clone(), torch.ones(2, 33, dtype=BF16), torch.ones(2, 33, dtype=BF16))


def test_linear_refuses_weights_packed_for_another_dtype():
    packed = kernels.pack_linear(torch.randn(8, 8).to(BF16))
    for dtype in (torch.float16, torch.float32):
        with pytest.raises(ValueError, match=r"x .*float"):
            kernels.linear(torch.randn(2, 8).to(dtype), packed)
    with pytest.raises(ValueError, match=r"x must be \[\.\.\., 8\]"):
        kernels.linear(torch.tensor(1.0, dtype=BF16), packed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_mul_far_out_is_what_torch_says(dtype):
    gate = torch.tensor([[-100.0, -1e30, -float("inf"), 1e30, float("inf"), float("nan"), -3e38]]).to(dtype)
    got = kernels.silu_mul(torch.cat([gate, torch.ones_like(gate)], -1))
    torch.testing.assert_close(got, torch.nn.functional.silu(gate), equal_nan=True, rtol=1e-6, atol=1e-35)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forking with threads is what is being tested
def test_a_forked_child_can_still_compute():
    kernels.set_num_threads(2)
    packed, x = kernels.pack_linear(torch.randn(512, 512)), torch.randn(4, 512)
    wanted = kernels.linear(x, packed)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(kernels.linear(x, packed), wanted) else 1)
    for _ in range(500):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            return
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"start": [1, 2, 4]}, "start", "start[0] must be in 0 … 0, got 1"),
        ({"start": [0, 2, 3]}, "start", "start[N] must be in 4 … 4, got 3"),
        ({"start": [0, 3, 4]}, "rows", "the rows of a request must be in 1 … 2, got 3"),
        ({"source": [0, 1, 2, 4]}, "source", "source must be in 0 … 3, got 4"),
        ({"position": [0, 1, -2, 1]}, "position", "position must be in 0 … 9223372036854775807, got -2"),
        ({"slot": [0, 0, 3, 3]}, "slot", "slot must be in 0 … 2, got 3"),
        ({"slot": [0, 1, 1, 1]}, "slot", "the slot of a request's rows must be in 0 … 0, got 1"),
        ({"slot": [0, 0, 2, 2]}, "slot", "slot 2 is empty"),
        ({"draft": [8, -1, 1, -1]}, "drafts", "drafts must be in 0 … 7, got 8"),
        ({"draft": [0, 5, 1, -1]}, "draft", "the draft of a bonus row must be in -1 … -1, got 5"),
        ({"rule": [0, 4]}, "rule", "rule must be in 0 … 3, got 4"),
        ({"mask": [0, 1, 0, 0]}, "mask", "mask must be in -1 … 0, got 1"),
        ({"companion": [4, -1, -1, -1]}, "companion", "companion must be in -1 … 3, got 4"),
        ({"scale": [-1.0, 0, 0, 0]}, "scale", "scale must be finite and at least 0, got -1.000000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_steps_rows_are_refused_by_the_fields_name(change, field, message):
    good = {
        "slot": [0, 0, 1, 1],
        "source": [0, 1, 2, 3],
        "position": [0, 1, 0, 1],
        "start": [0, 2, 4],
        "draft": [0, -1, 1, -1],
        "mask": [0, 0, 0, 0],
        "companion": [0, -1, -1, -1],
        "scale": [0.0, 0, 0, 0],
        "rule": [0, 3],
    }
    needs = SlotNeeds.of(3)
    needs.table[:2] = -1, TAKEN

    def check(given: dict[str, list]) -> None:
        dtypes = {"rule": torch.int32, "scale": torch.float32}
        columns = {name: torch.tensor(column, dtype=dtypes.get(name, torch.int64)) for name, column in given.items()}
        guidance = Guidance(columns.pop("companion"), columns.pop("scale"))
        masks = torch.zeros(1, 1, dtype=torch.int32)
        check_rows(torch.zeros(4, 8), Rows(**columns, width=2, masks=masks, guidance=guidance), needs)

    check(good)
    with pytest.raises(ParameterError) as caught:
        check(good | change)
    assert (str(caught.value), caught.value.param) == (message, field)


LAZY = torch._neg_view  # negated lazily: the memory holds the opposite numbers
X, W = torch.ones(2, 32), torch.ones(32)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("x", lambda: find("rms_norm", "cpu")(LAZY(X), W, 1e-5)),
        ("weight", lambda: find("rms_norm", "cpu")(X, LAZY(W), 1e-5)),
        ("residual", lambda: find("add_rms_norm", "cpu")(LAZY(X), X, W, 1e-5)),
        ("delta", lambda: find("add_rms_norm", "cpu")(X, LAZY(X), W, 1e-5)),
        ("gate_up", lambda: find("silu_mul", "cpu")(LAZY(X))),
        ("x", lambda: find("rotary", "cpu")(LAZY(X[:, None]), X, X)),
        ("cos", lambda: find("rotary", "cpu")(X[:, None], LAZY(X), X)),
        ("weight", lambda: find("pack_linear", "cpu")(LAZY(X))),
        ("bias", lambda: find("pack_linear", "cpu")(X, LAZY(X[:, 0]))),
        ("x", lambda: kernels.linear(LAZY(X), kernels.pack_linear(X))),
        ("raw", lambda: find("pack_quantized", "cpu")(torch.ones(2, 34, dtype=torch.uint8).to("meta"), 8, 32)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_negated_lazily_is_refused_by_name(name, call):
    with pytest.raises(ValueError, match=f"^{name} must be a dense tensor"):
        call()


@pytest.mark.parametrize("name", ["query", "block_tables", "query_start", "kv_len"])
def test_what_attention_can_not_read_by_address_is_refused(step, name):
    with pytest.raises(ValueError, match=f"^{name} must be a dense tensor"):
        find("paged_attention", "cpu")(
            *(
                (step | {name: LAZY(step[name])})[key]
                for key in ("query", "cache", "block_tables", "query_start", "kv_len")
            ),
            None,
        )
