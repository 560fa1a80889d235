"""Runs forward passes, and bounds how many steps may be in flight. On a GPU passes run in the order of its stream. On
the CPU, if steps overlap, they run on one thread of their own."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from tailrace.config import Overlap
from tailrace.engine.stats import Counters
from tailrace.runners.base import Batch, ModelRunner, StatefulRunner


class Device:
    """A runner whose forward passes run one after another.

    Args:
        depth: steps whose forward pass runs while the engine's thread continues, 0 or 1.
    """

    def __init__(self, runner: ModelRunner, counters: Counters, depth: int) -> None:
        self.runner, self.depth, self._counters = runner, depth, counters
        self._thread = ThreadPoolExecutor(1, "forward") if depth and not is_asynchronous(runner) else None

    def launch(self, batch: Batch) -> Future[torch.Tensor]:
        """Launch a forward pass, and return its future logits.

        Until they have arrived, only stream-ordered calls may go to the runner; on the CPU, none.
        """
        launched: Future[torch.Tensor] = Future()
        if self._thread is None:
            with self._counters.time_part("forward"):
                launched.set_result(self.runner.forward(batch))
            return launched
        begun = threading.Event()
        launched = self._thread.submit(self._run_forward, batch, begun)
        begun.wait()  # otherwise this thread would keep the interpreter as long as it has work
        return launched

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy blocks, before the pass that writes to the copies."""
        if copies:
            with self._counters.time_part("forward"):
                self.runner.copy_blocks(copies)

    def copy_states(self, copies: list[tuple[int, int]]) -> None:
        """Copy states, before the pass that continues from the copies."""
        if copies and isinstance(self.runner, StatefulRunner):
            with self._counters.time_part("forward"):
                self.runner.copy_states(copies)

    def _run_forward(self, batch: Batch, begun: threading.Event) -> torch.Tensor:
        begun.set()
        with self._counters.time_part("forward", lane="device"):
            return self.runner.forward(batch)


def is_asynchronous(runner: ModelRunner) -> bool:
    """The runner's calls return at once, and what they have launched runs in order."""
    return runner.device.type != "cpu"


def may_overlap_steps(wanted: Overlap, runner: ModelRunner) -> bool:
    """Return whether steps overlap. auto: if the host is otherwise idle. On the CPU the model itself needs all
    cores."""
    return is_asynchronous(runner) if wanted == "auto" else wanted == "on"
