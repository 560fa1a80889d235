"""Decode steps as CUDA graphs: for a small batch the host takes longer to launch a step's kernels than the GPU to run them, and a graph is
one launch.

A batch of which every sequence has one token is padded to the next size for which there is a graph. Rows of padding have slot −1, so that
nothing is written for them, and no positions, so that nothing is read. Anything else runs as before.
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


def sizes(most: int) -> list[int]:
    """1, 2, 4, 8, then steps of 8 up to 256 and of 16 from there on; the last one is `most`."""
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, most, 16))
    return [*(size for size in steps if size < most), most]


def padded(batch: Batch, size: int) -> list[torch.Tensor]:
    """What changes from step to step: token_ids, positions, slot_mapping and kv_len of `size` sequences, block_tables as they are."""
    more = (0, size - len(batch.kv_len))
    return [
        pad(batch.token_ids, more),
        pad(batch.positions, more),
        pad(batch.slot_mapping, more, value=-1),
        pad(batch.kv_len, more),
        batch.block_tables,
    ]


def nothing(width: int) -> Batch:
    """A batch of no sequences."""
    none, narrow = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
    return Batch(none, none, none, torch.zeros(1, dtype=torch.int32), narrow, narrow.view(0, width), none)


class Graphs:
    """One graph per size, from the largest to the smallest.

    Args:
        run: a forward pass over a batch on the device → logits; it must not look at what is in the batch's tensors.
        most: sequences of the largest. width: entries of a block table, at most.
        capture: a function that launches work → one that launches the same work again, on the same addresses.
    """

    def __init__(
        self,
        run: Callable[[Batch], torch.Tensor],
        most: int,
        width: int,
        device: torch.device,
        capture: Callable[[Launch], Launch],
    ) -> None:
        self.most, self.width, self.device = most, width, device
        self.sizes = sizes(most)
        self.tables = torch.zeros((most, width), dtype=torch.int32, device=device)
        self.starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self.wanted = torch.arange(most, device=device)
        largest = [*padded(nothing(width), most)[:-1], self.tables]
        self.words = torch.zeros(sum(map(room, largest)), dtype=torch.int64, device=device)
        self.logits = run(self._static(most)).clone()
        self.launches = {size: capture(self._step(run, size)) for size in reversed(self.sizes)}

    def serves(self, batch: Batch) -> bool:
        """Every sequence has one token, those whose logits are wanted come first, and there is room for all."""
        sequences, width = batch.block_tables.shape
        return (
            sequences <= self.most
            and width <= self.width
            and len(batch.token_ids) == sequences
            and torch.equal(batch.wanted, torch.arange(len(batch.wanted)))
        )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Logits [L, V] of a batch that it serves, in memory that the next call overwrites."""
        sequences, width = batch.block_tables.shape
        size = self.sizes[bisect_left(self.sizes, sequences)]
        ids, *_, tables = self._load(padded(batch, size))
        self.tables[:sequences, :width].copy_(tables)
        if batch.previous is not None:
            ids = ids[:sequences]
            ids.copy_(replace(batch, token_ids=ids).input_ids(self.device))
        self.launches[size]()
        return self.logits[: len(batch.wanted)]

    # ---- inside

    def _load(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copy them to the device; where they are there. The addresses of all but the last depend on the size alone."""
        packed = pack(parts, pinned=self.device.type == "cuda")
        self.words[: len(packed)].copy_(packed, non_blocking=True)
        return unpack(self.words, parts)

    def _static(self, size: int) -> Batch:
        """What the graph of this size reads; nothing but padding for now."""
        ids, positions, slots, kv_len, _ = self._load(padded(nothing(self.width), size))
        return Batch(ids, positions, slots, self.starts[: size + 1], kv_len, self.tables[:size], self.wanted[:size])

    def _step(self, run: Callable[[Batch], torch.Tensor], size: int) -> Launch:
        batch = self._static(size)

        def step() -> None:
            self.logits[:size].copy_(run(batch))

        return step


@contextmanager
def nobody_waits() -> Iterator[None]:
    """Within, whatever makes the host wait for the GPU is a RuntimeError: in all threads, so it is for a model's load, not for later."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this may miss some
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class Recorder:
    """`capture` of Graphs, on a GPU. One memory pool for all, as no two of them run at once."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, step: Launch) -> Launch:
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            step()  # what is compiled or set up at the first call can't be captured
            with nobody_waits():
                step()  # found out here: a capture that fails leaves torch's allocator in the belief that it goes on
        here.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads may use the GPU meanwhile
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                step()
        finally:
            torch.cuda.set_stream(here)  # where a capture fails, its own would stay
        return graph.replay
