"""Models with states by the GPU's kernels: close to the CPU's, decode steps as CUDA graphs with the model's bits, no
waiting for the device. Without a GPU the scans run in Triton's interpreter, and a graph is a second call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernels.backends import DEVICES
from runners.test_graphs import NobodyWaits, again
from runners.tiny_models import VOCAB, save
from tailrace import kernels
from tailrace.config import ModelConfig
from tailrace.kernels.dispatch import choose, find
from tailrace.kernels.walk import WalkPlaces
from tailrace.runners import load_runner
from tailrace.runners.base import Batch
from tailrace.runners.decode_steps import record_graphs
from tailrace.runners.flat_batch import FlatTokens
from tailrace.runners.graphs import Graphs, pad_inputs
from tailrace.runners.inputs import move_batch
from tailrace.runners.states import RecurrentState
from tailrace.runners.transformers import TransformersRunner

CUDA = torch.cuda.is_available()
DEVICE = torch.device(DEVICES["gpu"])
SIZE, WIDTH, MOST, ROWS = 16, 2, 3, 3
SCANS = ("scan_heads", "scan_channels", "convolve")
ATTENTION = ("make_cache", "store_kv", "paged_attention")
NAMES = ["qwen3.5", "lfm2", "mamba2", "mamba", "minimax", "kimi linear"]


def use_kernels(patch: pytest.MonkeyPatch, scans: str) -> None:
    """Without a GPU use this backend's scans, and attention that knows padding. Other kernels are the CPU's."""
    chosen = {} if CUDA else dict.fromkeys(SCANS, scans) | dict.fromkeys(ATTENTION, "reference")

    def choose_backend(operation: str, device: str, dtype: torch.dtype):
        return find(operation, chosen[operation]) if operation in chosen else choose(operation, device, dtype)

    patch.setattr(kernels, "choose", choose_backend)


@pytest.fixture(autouse=True)
def gpu_scans(monkeypatch) -> None:
    use_kernels(monkeypatch, "gpu")


class Loaded:
    """A tiny model with states for three sequences, and their tokens."""

    def __init__(self, name: str, folder) -> None:
        config = ModelConfig(dtype="float32", threads=1, device=DEVICE.type, cpu_graphs=False)
        with pytest.MonkeyPatch.context() as patch:  # while it loads: the interpreter is slow
            use_kernels(patch, "cpu")
            runner = load_runner(config, save(name, folder), block_size=SIZE, max_num_seqs=MOST if CUDA else 0)
            assert isinstance(runner, TransformersRunner)
            runner.allocate_states(MOST, ROWS, 0)
            runner.allocate(MOST * WIDTH)
        self.runner, self.paged = runner, runner.paged
        self.ids = torch.randint(1, VOCAB, (MOST, 20), generator=torch.Generator().manual_seed(5))

    def clear(self) -> None:
        for memory in self.paged.states.memory.values():
            memory.fill_(float("nan"))  # what an old owner left must not matter

    def batch(self, *parts: tuple[int, int, int]) -> Batch:
        """Sequence i has slot MOST − 1 − i. The logits of each part's last token are wanted."""
        flat = FlatTokens()
        for sequence, first, end in parts:
            flat.add(self.ids[sequence, first:end].tolist(), end)
        flat.wanted = [end - 1 for end in flat.query_start[1:]]
        tables = torch.arange(MOST * WIDTH, dtype=torch.int32).view(MOST, WIDTH)[[part[0] for part in parts]]
        return flat.make_batch(tables.numpy(), SIZE, slots=[MOST - 1 - part[0] for part in parts])

    def states(self) -> list[torch.Tensor]:
        return [memory.clone() for memory in self.paged.states.memory.values()]


@pytest.fixture(scope="module", params=NAMES)
def loaded(request, tmp_path_factory) -> Iterator[Loaded]:
    with torch.inference_mode():
        yield Loaded(request.param, tmp_path_factory.mktemp("model"))


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(first, second, strict=True))


@pytest.mark.few(3)
@torch.inference_mode()
def test_graphs_have_the_models_bits(loaded):
    """Steps of all sequences, of some in another order, and of one: padding touches no state."""
    paged = loaded.paged
    graphs = Graphs(paged.run_placed, MOST, WIDTH, DEVICE, again, states=True)
    if CUDA:
        assert isinstance(loaded.runner.decode_steps, Graphs)
        graphs = loaded.runner.decode_steps
    loaded.clear()
    paged.logits(loaded.batch((0, 0, 6), (1, 0, 1), (2, 0, 3)))
    place = [6, 1, 3]
    for which in ([0, 1, 2], [2, 0], [1]):
        batch = loaded.batch(*((i, place[i], place[i] + 1) for i in which))
        assert graphs.serves(batch)
        before = loaded.states()
        mine, left = graphs(batch).clone(), loaded.states()
        for memory, numbers in zip(paged.states.memory.values(), before, strict=True):
            memory.copy_(numbers)
        assert torch.equal(mine, paged.logits(batch))
        assert same(left, loaded.states())
        for i in which:
            place[i] += 1
    batch = loaded.batch((0, place[0], place[0] + 1))  # the planted fault: another sequence's state
    expected = paged.logits(batch).clone()
    assert not torch.equal(graphs(replace(batch, slots=batch.slots - 1)), expected)


@pytest.mark.few(2)
@torch.inference_mode()
def test_logits_are_close_to_those_of_the_cpus_kernels(loaded, monkeypatch):
    batch = loaded.batch((0, 0, 6), (1, 0, 2))
    loaded.clear()
    mine = loaded.paged.logits(batch).clone()
    for name in SCANS if CUDA else ():
        monkeypatch.setattr(kernels, name, find(name, "reference"))
    use_kernels(monkeypatch, "cpu")
    loaded.clear()
    torch.testing.assert_close(mine, loaded.paged.logits(batch), atol=1e-3, rtol=1e-3)


@pytest.mark.few(2)
@torch.inference_mode()
def test_nobody_waits_for_the_device(loaded):
    states, batch = loaded.paged.states, loaded.batch((0, 0, 3), (1, 0, 1))
    loaded.clear()
    with NobodyWaits(), states.walking(states.plan_walk(batch, DEVICE)):
        loaded.paged.run(move_batch(batch, DEVICE))


@torch.inference_mode()
def test_a_graph_is_compared_with_the_model_first(tmp_path, caplog):
    """The planted fault: a graph whose padding and slots are those of its capture."""
    paged = Loaded("lfm2", tmp_path).paged
    if not CUDA:
        assert record_graphs(paged, MOST, WIDTH, again) is not None
    assert not caplog.text
    assert record_graphs(paged, MOST, WIDTH, lambda step: lambda: None) is None
    assert "no CUDA graphs: its replacement changes the logits" in caplog.text


@pytest.mark.few(1)
def test_slots_are_padded_with_none(loaded):
    batch = loaded.batch((0, 0, 1), (2, 4, 5))
    ids, _, places, kv_len, slots, tables = pad_inputs(batch, 3, states=True)
    assert slots.tolist() == [MOST - 1, MOST - 3, -1]
    assert (len(ids), places[-1], kv_len.tolist()) == (3, -1, [1, 5, 0])
    assert tables is batch.block_tables
    assert pad_inputs(replace(batch, slots=None), 3, states=True)[4].tolist() == [0, 1, -1]


def test_a_trials_sequences_have_equal_states():
    state = RecurrentState(memory={(0, "a"): torch.arange(8.0)}, rows=2, slots=4)
    state.spread(3)
    assert state.memory[0, "a"].tolist() == [0, 1, 0, 1, 0, 1, 6, 7]
    batch = FlatTokens()
    batch.add([1], 1)
    given = batch.make_batch(torch.zeros(1, 1, dtype=torch.int32).numpy(), SIZE, slots=[3])
    assert state.place_walk(given) is None  # a model without states
    state.shapes[0, "a"] = ((), torch.float32)
    walk = state.place_walk(given)
    assert walk is not None
    assert walk.places == WalkPlaces(given.query_start, given.kv_len, given.slots)
