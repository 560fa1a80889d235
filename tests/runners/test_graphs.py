"""The model's part of a step on a GPU: padded decode batches, one copy of all inputs, no waiting for the device.
Without a GPU the attention kernels run in Triton's interpreter, and a graph is a second call of the function that it
would have captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from examples import examples
from kernels.backends import DEVICES
from runners.test_transformers import ARCHITECTURES, SIZE, Cache, save
from tailrace.config import ModelConfig
from tailrace.kernels import dispatch
from tailrace.kernels.transfer import pack, unpack
from tailrace.runners import load_runner
from tailrace.runners import load_transformers as module
from tailrace.runners.base import Batch
from tailrace.runners.decode_steps import record_graphs
from tailrace.runners.graphs import GraphRecorder, Graphs, list_graph_sizes, make_empty_batch, nobody_waits, pad_inputs
from tailrace.runners.inputs import FIELDS, move_batch
from tailrace.runners.transformers import TransformersRunner

CUDA = torch.cuda.is_available()
DEVICE = torch.device(DEVICES["gpu"])
BLOCKS, WIDTH, MOST = 10, 4, 5


# ---- sizes, padding, packing


def test_sizes():
    assert list_graph_sizes(1) == [1]
    assert list_graph_sizes(3) == [1, 2, 3]
    assert list_graph_sizes(64) == [1, 2, 4, *range(8, 65, 8)]
    assert list_graph_sizes(300) == [1, 2, 4, *range(8, 256, 8), 256, 272, 288, 300]


def test_padding_writes_nothing_and_sees_nothing():
    batch = Cache(2, WIDTH).batch([(0, [1, 2, 3], 2), (1, [4], 0)])
    ids, positions, slots, kv_len, tables = pad_inputs(batch, 4)
    assert ids.tolist() == [3, 4, 0, 0]
    assert positions.tolist() == [2, 0, 0, 0]
    assert slots.tolist() == [*batch.slot_mapping.tolist(), -1, -1]
    assert kv_len.tolist() == [3, 1, 0, 0]
    assert kv_len.dtype == torch.int32
    assert tables is batch.block_tables
    assert pad_inputs(make_empty_batch(WIDTH), 2)[2].tolist() == [-1, -1]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=7))
@settings(max_examples=examples(50), deadline=None)
def test_parts_come_out_of_one_buffer_as_they_went_in_and_aligned(shapes):
    parts = [torch.randint(-9, 9, (n, m), dtype=torch.int32 if short else torch.int64) for short, n, m in shapes]
    words = pack(parts, pinned=False)
    views = unpack(words, parts)
    for part, view in zip(parts, views, strict=True):
        assert torch.equal(part, view)
        assert (view.data_ptr() - words.data_ptr()) % 16 == 0 or not part.numel()


def test_a_batch_is_moved_whole():
    batch = replace(Cache(2, WIDTH).batch([(0, [1, 2, 3], 0), (1, [4], 0)]), previous=torch.tensor([5]).to(DEVICE))
    there = move_batch(batch, DEVICE if CUDA else torch.device("meta"))
    assert there.adapted == batch.adapted  # moved by whoever adds them (runners/lora.py)
    for field in fields(Batch):
        if field.name in ("adapted", "slots"):
            continue
        before, after = getattr(batch, field.name), getattr(there, field.name)
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        assert after.device.type == (DEVICE.type if CUDA or field.name not in FIELDS else "meta")
        assert not CUDA or torch.equal(before.cpu(), after.cpu())
    assert {field.name for field in fields(Batch)} == {*FIELDS, "previous", "adapted", "slots"}


# ---- a model


@contextmanager
def prefer(*backends: str) -> Iterator[None]:
    """These kernels on the CPU, and the model's own modules, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dispatch.PREFERENCE, "cpu", backends)
        patch.setattr(module, "fuse_modules", lambda model, run, keep, more: [])
        dispatch.choose.cache_clear()
        yield
    dispatch.choose.cache_clear()


# Without a GPU these try the recorder with torch's kernels; make test-long has the GPU's, in the interpreter.
KERNELS = ["gpu"] if CUDA else ["reference", pytest.param("gpu", marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=KERNELS)
def kernels(request):
    with prefer(*dict.fromkeys((request.param, "reference", "cpu"))):
        yield


@pytest.fixture
def plain_kernels():
    with prefer("cpu", "reference"):
        yield


@pytest.fixture(scope="module")
def runner(kernels, tmp_path_factory) -> TransformersRunner:
    folder = save("llama", tmp_path_factory.mktemp("model"))
    config = ModelConfig(dtype="float32", device=DEVICE.type, cpu_graphs=False)
    made = load_runner(config, folder, block_size=SIZE, max_num_seqs=MOST if CUDA else 0)
    assert isinstance(made, TransformersRunner)
    made.allocate(BLOCKS)
    return made


def again(step):
    """The stand-in for a graph without a GPU: the call again, on the same tensors."""
    step()
    return step


@pytest.fixture(scope="module")
def graphs(runner) -> Graphs:
    made = runner.decode_steps if CUDA else Graphs(runner.paged.run, MOST, WIDTH, DEVICE, again)
    assert made is not None
    return made


PROMPTS = [[5, 9, 2], [7] * 17, [3], [8, 1] * 12, [50, 60]]


def decodes(cache: Cache, which: list[int]) -> Batch:
    return cache.batch([(i, PROMPTS[i], len(PROMPTS[i]) - 1) for i in which])


@pytest.fixture
def cache(runner) -> Cache:
    """All prompts but their last tokens are in the cache."""
    cache = Cache(len(PROMPTS), BLOCKS // len(PROMPTS))
    with torch.inference_mode():
        runner.paged.logits(cache.batch([(i, prompt, 0) for i, prompt in enumerate(PROMPTS)]))
    return cache


@pytest.mark.parametrize(
    "which",
    [[0], [3, 1], [4, 2, 1, 0], [0, 1, 2], [0, 1, 2, 3, 4]],
    ids=str,
)
@torch.inference_mode()
def test_a_graph_computes_what_the_model_does(runner, graphs, cache, which):
    batch = decodes(cache, which)
    assert graphs.serves(batch)
    torch.testing.assert_close(graphs(batch), runner.paged.logits(batch), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_tokens_drawn_in_the_step_before_are_read_on_the_device(runner, graphs, cache):
    batch = decodes(cache, [0, 1, 2])
    plain = graphs(batch).clone()
    previous = torch.tensor([11, PROMPTS[2][-1], PROMPTS[0][-1]], device=DEVICE)
    ids = batch.token_ids.clone()
    ids[0], ids[2] = -1 - 2, -1 - 1
    assert torch.equal(graphs(replace(batch, token_ids=ids, previous=previous)), plain)
    assert torch.equal(
        runner.paged.logits(replace(batch, token_ids=ids, previous=previous)), runner.paged.logits(batch)
    )
    previous[2] = 12
    assert not torch.equal(graphs(replace(batch, token_ids=ids, previous=previous))[0], plain[0])


@torch.inference_mode()
def test_a_row_does_not_see_its_neighbours_in_attention(runner, graphs, cache):
    """The same matrix sizes with other neighbours: the same bits."""
    mine = graphs(decodes(cache, [1, 0, 4]))[0].clone()
    assert torch.equal(graphs(decodes(cache, [1, 3, 2]))[0], mine)


@torch.inference_mode()
def test_padding_leaves_the_cache_alone(runner, graphs, cache):
    batch = decodes(cache, [0, 1, 2])
    free = torch.ones(BLOCKS * SIZE, dtype=torch.bool)
    free[batch.slot_mapping] = False

    def others() -> list[torch.Tensor]:
        bits = (x.view(torch.int32).cpu() for layer in runner.paged.layers.caches for x in (layer.keys, layer.values))
        return [x.transpose(1, 2).flatten(0, 1)[free] for x in bits]

    before = others()
    graphs(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, others(), strict=True))
    other = decodes(cache, [3])  # the planted fault: a row that is no padding, with another token than before
    runner.paged.logits(replace(other, token_ids=other.token_ids + 1))
    assert not all(torch.equal(a, b) for a, b in zip(before, others(), strict=True))


def test_what_a_graph_serves(graphs):
    cache = Cache(MOST + 1, WIDTH)
    one = cache.batch([(i, [1], 0) for i in range(3)])
    assert graphs.serves(one)
    assert graphs.serves(replace(one, wanted=one.wanted[:2]))
    assert graphs.serves(replace(one, wanted=one.wanted[:0]))
    assert not graphs.serves(replace(one, wanted=one.wanted[1:]))
    assert not graphs.serves(replace(one, block_tables=torch.zeros(3, graphs.width + 1, dtype=torch.int32)))
    assert not graphs.serves(cache.batch([(0, [1, 2], 0), (1, [3], 0)]))
    assert not graphs.serves(cache.batch([(i, [1], 0) for i in range(MOST + 1)]))


def test_who_computes_a_step(runner, graphs, cache, monkeypatch):
    served = []
    monkeypatch.setattr(Graphs, "__call__", lambda self, batch: served.append(batch) or self.logits[:1])
    monkeypatch.setattr(runner, "decode_steps", graphs)
    decode, prefill = decodes(cache, [2]), cache.batch([(0, [1, 2], 0)])
    assert runner.forward(prefill).shape[0] == 2
    assert not served
    runner.forward(decode)
    assert served == [decode]
    runner.capture((1,))
    assert runner.forward(decode).shape[0] == 1
    runner.capture(())
    assert served == [decode]


def test_graphs_are_compared_with_the_model_first(runner, caplog):
    def refused(step):
        raise RuntimeError("operation not permitted when stream is capturing")

    record = partial(record_graphs, runner.paged, 3, WIDTH)
    if not CUDA:
        assert record(again) is not None
    assert not caplog.text
    assert record(refused) is None
    assert "no CUDA graphs: operation not permitted" in caplog.text
    caplog.clear()
    assert record(lambda step: lambda: None) is None  # captured nothing
    assert "no CUDA graphs: its replacement changes the logits" in caplog.text


# ---- the host


class NobodyWaits(TorchDispatchMode):
    """Raises where the host would have to wait for the device: for a number, or for how many there are."""

    NAMES = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "bincount"})

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        indices = args[1] if name.startswith("index") and isinstance(args[1], list) else ()
        if name in self.NAMES or any(x is not None and x.dtype == torch.bool for x in indices):
            raise RuntimeError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_model_waits_for_the_device(name, tmp_path, plain_kernels):
    made = load_runner(ModelConfig(dtype="float32", device=DEVICE.type), save(name, tmp_path), block_size=SIZE)
    assert isinstance(made, TransformersRunner)
    made.allocate(BLOCKS)
    cache = Cache(2, WIDTH)
    prefill, decode = cache.batch([(0, [1, 2, 3], 0), (1, [5], 0)]), cache.batch([(0, [1, 2, 3, 4], 3), (1, [5, 6], 1)])
    with torch.inference_mode():
        for batch in (move_batch(prefill, DEVICE), move_batch(decode, DEVICE)):
            with NobodyWaits():
                made.paged.run(batch)


def test_who_waits_is_seen():
    x = torch.ones(3)
    for wait in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x[x > 0], lambda: bool(x.any())):
        with NobodyWaits(), pytest.raises(RuntimeError, match="waits for the device"):
            wait()
    with NobodyWaits():
        assert x[torch.tensor([0, 2])].shape == (2,)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_a_step_on_a_gpu_waits_for_nothing(runner, graphs, cache):
    steps = [decodes(cache, [0, 1, 2]), cache.batch([(0, [1, 2, 3], 0), (1, [4], 0)])]
    for batch in steps:
        runner.forward(batch)
    with nobody_waits():
        for batch in steps:
            runner.forward(batch)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_what_can_not_be_captured_leaves_no_trace():
    """A step that makes the host wait is refused, and the thread's stream and the allocator are restored."""
    numbers, here = torch.arange(4, device=DEVICE), torch.cuda.current_stream()
    recorder = GraphRecorder(DEVICE)
    with pytest.raises(RuntimeError, match="synchroniz"):
        recorder(lambda: numbers[0].item())
    assert torch.cuda.current_stream() == here
    launch = recorder(lambda: numbers.add_(1))
    before = numbers.clone()
    launch()
    assert torch.equal(numbers, before + 1)
