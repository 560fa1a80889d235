"""Decode steps as CUDA graphs. For a small batch the host takes longer to launch a step's kernels than the GPU takes to
run them; a graph is one launch.

A batch in which every sequence has one token is padded to the next size that has a graph. Padding rows have slot −1, so
nothing is written for them, and no positions, so nothing is read. Their states have slot −1, too. Any other batch runs
without a graph.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.nn.functional import pad

from tailrace.kernels.transfer import pack, room, unpack
from tailrace.runners.base import Batch

Launch = Callable[[], None]


def list_graph_sizes(most: int) -> list[int]:
    """Return 1, 2, 4, 8, then steps of 8 up to 256, then steps of 16. The last one is `most`."""
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, most, 16))
    return [*(size for size in steps if size < most), most]


def pad_inputs(batch: Batch, size: int, states: bool = False) -> list[torch.Tensor]:
    """Return the inputs that change from step to step: token_ids, positions, slot_mapping, kv_len and, with states, the
    sequences' slots, all padded to `size` sequences, and block_tables unpadded."""
    sequences = len(batch.kv_len)
    more = (0, size - sequences)
    found = [
        pad(batch.token_ids, more),
        pad(batch.positions, more),
        pad(batch.slot_mapping, more, value=-1),
        pad(batch.kv_len, more),
    ]
    if states:
        found.append(pad(torch.arange(sequences) if batch.slots is None else batch.slots, more, value=-1))
    return [*found, batch.block_tables]


def make_empty_batch(width: int) -> Batch:
    """Return a batch of no sequences."""
    none, narrow = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
    return Batch(none, none, none, torch.zeros(1, dtype=torch.int32), narrow, narrow.view(0, width), none)


class Graphs:
    """One graph per size, from the largest to the smallest.

    Args:
        run: a forward pass over a batch on the device → logits. It must not read tensor values on the host.
        most: sequences of the largest graph.
        width: the most entries of a block table.
        capture: turns a function into one that launches the same work again. The addresses stay the same.
        states: the model keeps states, so `run` needs the sequences' slots.
    """

    def __init__(
        self,
        run: Callable[[Batch], torch.Tensor],
        most: int,
        width: int,
        device: torch.device,
        capture: Callable[[Launch], Launch],
        states: bool = False,
    ) -> None:
        self.most, self.width, self.device, self.states = most, width, device, states
        self.sizes = list_graph_sizes(most)
        self.tables = torch.zeros((most, width), dtype=torch.int32, device=device)
        self.starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self.wanted = torch.arange(most, device=device)
        largest = [*pad_inputs(make_empty_batch(width), most, states)[:-1], self.tables]
        self.words = torch.zeros(sum(map(room, largest)), dtype=torch.int64, device=device)
        self.logits = run(self._make_static_batch(most)).clone()
        self.launches = {size: capture(self._make_step(run, size)) for size in reversed(self.sizes)}

    def serves(self, batch: Batch) -> bool:
        """Return True if every sequence has one token, sequences whose logits are wanted come first, and all fit."""
        sequences, width = batch.block_tables.shape
        return (
            sequences <= self.most
            and width <= self.width
            and len(batch.token_ids) == sequences
            and torch.equal(batch.wanted, torch.arange(len(batch.wanted)))
        )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits [L, V] of a batch that it serves. The next call overwrites them."""
        sequences, width = batch.block_tables.shape
        size = self.sizes[bisect_left(self.sizes, sequences)]
        ids, *_, tables = self._load_inputs(pad_inputs(batch, size, self.states))
        self.tables[:sequences, :width].copy_(tables)
        if batch.previous is not None:
            ids = ids[:sequences]
            ids.copy_(replace(batch, token_ids=ids).input_ids(self.device))
        self.launches[size]()
        return self.logits[: len(batch.wanted)]

    # ---- inside

    def _load_inputs(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copy the tensors to the device; return them there. All addresses but the last depend on the size alone."""
        packed = pack(parts, pinned=self.device.type == "cuda")
        self.words[: len(packed)].copy_(packed, non_blocking=True)
        return unpack(self.words, parts)

    def _make_static_batch(self, size: int) -> Batch:
        """Return the inputs of the graph of this size; only padding for now."""
        parts = self._load_inputs(pad_inputs(make_empty_batch(self.width), size, self.states))
        ids, positions, places, kv_len, *slots, _ = parts
        batch = Batch(ids, positions, places, self.starts[: size + 1], kv_len, self.tables[:size], self.wanted[:size])
        return replace(batch, slots=slots[0]) if slots else batch

    def _make_step(self, run: Callable[[Batch], torch.Tensor], size: int) -> Launch:
        batch = self._make_static_batch(size)

        def run_step() -> None:
            self.logits[:size].copy_(run(batch))

        return run_step


@contextmanager
def nobody_waits() -> Iterator[None]:
    """Raise RuntimeError at whatever makes the host wait for the GPU inside this context. This affects all threads, so
    it is for use while a model loads, not later."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it may miss some waits
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class GraphRecorder:
    """`capture` of Graphs, on a GPU. All graphs share one memory pool, because no two run at once."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, step: Launch) -> Launch:
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            step()  # the first call compiles and sets up things, which can't be captured
            with nobody_waits():
                step()  # must fail here: after a failed capture torch's allocator believes that the capture goes on
        here.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads may use the GPU meanwhile
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                step()
        finally:
            torch.cuda.set_stream(here)  # after a failed capture its stream would stay current
        return graph.replay
