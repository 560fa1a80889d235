"""Recorded decode steps: the bits of the model's own code, for other inputs and other numbers of sequences; code that
can't be recorded is found at load."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch

from runners import tiny_models
from runners.test_transformers import ARCHITECTURES, SIZE, Cache, save
from tailrace import kernels
from tailrace.config import ModelConfig
from tailrace.kernels.cpu.launch import Call, noting
from tailrace.runners import load_runner
from tailrace.runners.base import Batch
from tailrace.runners.decode_steps import record_calls
from tailrace.runners.paged_model import PagedModel
from tailrace.runners.recorded import RecordedSteps
from tailrace.runners.step_recorder import StepMemory, StepRecorder, out_variant
from tailrace.runners.transformers import TransformersRunner

aten = torch.ops.aten
BLOCKS, EACH = 20, 4


# ---- torch's calls


def recorded(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, list[Call]]:
    """The result's place, and the calls that fill it anew."""
    calls: list[Call] = []
    memory = StepMemory()
    with torch.inference_mode(), noting(calls), StepRecorder(memory, calls):
        result = function(x)
    return memory.view_unowned(result), calls


def several(x: torch.Tensor) -> torch.Tensor:
    best, where = x.topk(2, -1)
    left, right = x.chunk(2, -1)
    return torch.cat([best, where.to(x.dtype), left, right.contiguous(), x.sort(-1).values[:, 1:3]], -1)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, 1] = x[:, 0]
    y.add_(x).masked_fill_(x > 0.5, 2.0)
    y[torch.tensor([1, 0])] = y[:2].clone()
    return y + torch.arange(x.shape[-1])


def layered(x: torch.Tensor) -> torch.Tensor:
    """Each temporary tensor's memory is used again."""
    for _ in range(20):
        x = torch.where(x > 0, x * 1.5, x.float().exp() - 1).to(torch.bfloat16).float()
    return x


def shapes(x: torch.Tensor) -> torch.Tensor:
    wide = x[:, None].expand(-1, 3, -1).transpose(1, 2).reshape(len(x), -1)
    return torch.einsum("ij,ij->i", wide, wide).unsqueeze(-1) @ x[:1].pow(2).mean(-1, keepdim=True)


def ours(x: torch.Tensor) -> torch.Tensor:
    weight = torch.full((x.shape[-1],), 0.5)
    return kernels.rms_norm(x, weight, 1e-6) + kernels.silu_mul(torch.cat([x, x * 2], -1))


def packed_in_every_pass(x: torch.Tensor) -> torch.Tensor:
    """Two weights that share a piece of memory, one after the other."""
    for factor in (2.0, 3.0):
        x = kernels.linear(x, kernels.pack_linear(torch.eye(x.shape[-1]) * factor))
    return x


def sums(x: torch.Tensor) -> torch.Tensor:
    """Additions that are our own, and others."""
    y = (x + x * 2).to(torch.bfloat16)
    z = y + y.flip(0)
    strided = z.T + y.T
    return (z + z[:1] + strided.T + 1 + torch.add(z, y, alpha=2)).float() + x.half().add(x.half())


@pytest.mark.parametrize("function", [several, in_place, layered, shapes, ours, sums, packed_in_every_pass])
def test_the_calls_do_the_functions_work_again(function):
    torch.manual_seed(0)
    x = torch.randn(5, 8)
    place, calls = recorded(function, x)
    assert torch.equal(place, function(x))
    for _ in range(3):
        x.copy_(torch.randn(5, 8))
        with torch.inference_mode():
            for call in calls:
                call()
        assert torch.equal(place, function(x))


def test_additions_of_tensors_that_lie_alike_are_our_own():
    x = torch.randn(5, 8)
    _, calls = recorded(sums, x)
    names = [getattr(getattr(call, "func", call), "__name__", "") for call in calls]
    assert names.count("add") == 4  # x + 2 x, y + y.flip(0), what strided.T and what 2 y is added to


def test_a_call_that_is_left_out_is_seen():
    """The planted fault."""
    x = torch.randn(5, 8)
    place, calls = recorded(layered, x)
    x.neg_()
    with torch.inference_mode():
        for call in calls[:-3] + calls[-2:]:
            call()
    assert not torch.equal(place, layered(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        torch.rand_like,
        lambda x: torch.bincount(x[0].abs().long()),
    ],
    ids=["item", "branch", "mask", "nonzero", "random", "bincount"],
)
def test_what_depends_on_values_is_refused(function):
    with pytest.raises(RuntimeError, match="reads tensors on the host"):
        recorded(function, torch.randn(5, 8))


def test_memory_comes_back():
    calls: list[Call] = []
    memory, x = StepMemory(), torch.randn(64, 64)
    with torch.inference_mode(), StepRecorder(memory, calls):
        layered(x)
        few = len(memory.pieces)
        for _ in range(50):
            layered(x)
    gc.collect()
    assert len(memory.pieces) == few < 10
    assert sum(map(len, memory.free.values())) == few
    kept = memory.allocate_like(x)
    assert memory.allocate_like(x).data_ptr() != kept.data_ptr()


def test_variants_that_write_to_a_given_place():
    assert out_variant(aten.add.Tensor) == (aten.add.out, "out")
    assert out_variant(aten.index_select.default) == (aten.index_select.out, "out")
    assert out_variant(aten._to_copy.default) is None  # its variant takes no dtype


def record_with(
    weight: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, StepRecorder]:
    recorder = StepRecorder(StepMemory(), [], [weight])
    with torch.inference_mode(), noting(recorder.calls), recorder:
        result = function(x)
    return recorder.memory.view_unowned(result), recorder


def decays(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Constants of which the last has the size of temporary tensors before and behind it."""
    for _ in range(3):
        x = (x * 2).sigmoid() * -weight.float().exp()
    return x.tanh() + weight[:4].float().repeat(2)


def changed_constants(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Constants that a later call writes to, and results of such constants."""
    first, second = weight.exp(), weight.cos()
    early = first + 1
    first.add_(x)
    torch.mul(second, x, out=second)
    return first.sin() + second + early + weight.neg()


@pytest.mark.parametrize(("function", "left_out"), [(decays, 11), (changed_constants, 2)])
def test_constants_are_computed_once(function, left_out):
    torch.manual_seed(0)
    weight, x = torch.randn(8).to(torch.bfloat16 if function is decays else torch.float32), torch.randn(8)
    place, recorder = record_with(weight, partial(function, weight), x)
    assert len(recorder.calls) - len(recorder.repeated) == left_out
    for _ in range(3):
        x.copy_(torch.randn(8))
        with torch.inference_mode():
            for call in recorder.repeated:
                call()
        assert torch.equal(place, function(weight, x))


def test_large_constants_are_computed_in_every_step():
    weight = torch.randn(1 << 19)
    _, recorder = record_with(weight, lambda x: x[0] * (weight + 1) + weight[:9].exp().sum(), torch.randn(8))
    assert len(recorder.calls) - len(recorder.repeated) == 2  # exp and sum


# ---- a model's


VOCAB = tiny_models.VOCAB
TEXT = ("deepseek-v2", "phi3, long rope", "llama, dynamic rope", "llama4 text", "gemma3 text", "gemma4 text")
NOT_RECORDED = {"llama, dynamic rope"}  # it depends on the longest sequence


def loaded(name: str, folder, dtype: str = "float32") -> TransformersRunner:
    (save if name in ARCHITECTURES else tiny_models.save)(name, folder)
    runner = load_runner(ModelConfig(dtype=dtype), folder, block_size=SIZE)
    assert isinstance(runner, TransformersRunner)
    runner.allocate(BLOCKS)
    return runner


@pytest.mark.few(6)
@pytest.mark.parametrize("name", sorted({*ARCHITECTURES, *TEXT} - NOT_RECORDED))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_have_the_models_bits(name, dtype, tmp_path):
    runner = loaded(name, tmp_path, dtype)
    steps = runner.decode_steps
    assert isinstance(steps, RecordedSteps)
    torch.manual_seed(1)
    cache = Cache(5, EACH)
    lengths = [1, 17, 40, 3, 30]
    prompts = [torch.randint(1, VOCAB, (length,)).tolist() for length in lengths]
    with torch.inference_mode():
        runner.forward(cache.batch([(i, prompt, 0) for i, prompt in enumerate(prompts)]))
        for which in ([2], [0, 1, 2, 3, 4], [4, 2], [1], [3, 0], [4, 3, 2, 1, 0]):
            for i in which:
                prompts[i].append(int(torch.randint(1, VOCAB, (1,))))
            batch = cache.batch([(i, prompts[i], len(prompts[i]) - 1) for i in which])
            assert steps.serves(batch)
            assert torch.equal(runner.forward(batch), runner.paged.logits(batch))
    assert {1, 2, 3, 5} == set(steps.steps)


@pytest.mark.parametrize(
    ("most", "sizes"), [(0, {1, 3}), (1, {1, 3}), (20, {1, 2, 3, 4, 8, 16, 20}), (500, {1, 2, 3, 4, 8, 16, 32, 64})]
)
def test_the_usual_numbers_of_sequences_are_recorded_at_load(most: int, sizes: set[int], tmp_path):
    """Else the first step of each has a gap for all its sequences."""
    save("llama", tmp_path)
    runner = load_runner(ModelConfig(dtype="float32"), tmp_path, block_size=SIZE, max_num_seqs=most)
    assert isinstance(runner, TransformersRunner)
    runner.allocate(BLOCKS)
    assert isinstance(runner.decode_steps, RecordedSteps)
    assert set(runner.decode_steps.steps) == sizes


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(NOT_RECORDED))
def test_models_that_read_values_run_their_own_code(name, tmp_path):
    assert loaded(name, tmp_path).decode_steps is None


def test_who_computes_a_step(tmp_path):
    runner = loaded("llama", tmp_path)
    steps, cache = runner.decode_steps, Cache(5, EACH)
    assert isinstance(steps, RecordedSteps)
    assert not steps.serves(cache.batch([(0, [1, 2], 0)]))
    assert not steps.serves(cache.batch([(0, [1, 2], 0), (1, [3], 0)]))
    assert steps.serves(cache.batch([(0, [1], 0), (1, [3], 0)]))
    assert ModelConfig().cpu_graphs
    plain = load_runner(ModelConfig(dtype="float32", cpu_graphs=False), tmp_path, block_size=SIZE)
    plain.allocate(BLOCKS)
    assert plain.decode_steps is None


def test_a_model_that_reads_values_is_not_recorded(tmp_path, caplog, monkeypatch):
    runner = loaded("llama", tmp_path)
    plain, patch = PagedModel.run, partial(monkeypatch.setattr, PagedModel, "run")
    patch(lambda self, batch: plain(self, batch) * int(batch.kv_len[0]))
    caplog.set_level("INFO")
    assert record_calls(runner.paged, 0, BLOCKS) is None
    assert "no recorded decode steps: aten" in caplog.text
    caplog.clear()
    patch(lambda self, batch: plain(self, batch) * (2 if batch.positions.tolist()[0] > 100 else 1))
    assert record_calls(runner.paged, 0, BLOCKS) is None
    assert "no recorded decode steps: tolist" in caplog.text
    # what torch is not asked for is seen by the logits
    read = lambda tensor: ctypes.c_int32.from_address(tensor.data_ptr()).value  # noqa: E731
    patch(lambda self, batch: plain(self, batch) * read(batch.kv_len))
    assert record_calls(runner.paged, 0, BLOCKS) is None
    assert "their logits are not the model's" in caplog.text


def test_a_step_that_can_not_be_recorded_later_runs_the_models_code(tmp_path, caplog, monkeypatch):
    """The model's code goes another way where there are more sequences than at load."""
    runner, cache = loaded("llama", tmp_path), Cache(5, EACH)
    plain = PagedModel.run

    def reads_of_many(self: PagedModel, batch: Batch) -> torch.Tensor:
        return plain(self, batch) * (batch.kv_len.sum().item() if len(batch.kv_len) > 4 else 1)

    monkeypatch.setattr(PagedModel, "run", reads_of_many)
    runner.decode_steps = record_calls(runner.paged, 0, BLOCKS)
    few, many = (cache.batch([(i, [1 + i], 0) for i in range(count)]) for count in (4, 5))
    runner.forward(few)
    assert isinstance(runner.decode_steps, RecordedSteps)
    assert torch.equal(runner.forward(many), runner.paged.logits(many))
    assert runner.decode_steps is None
    assert "no recorded decode steps from here on: aten" in caplog.text
    assert torch.equal(runner.forward(few), runner.paged.logits(few))
