"""Where forward passes run, and how many steps may be in flight: on a GPU passes run in the order of its stream; on the
CPU, where steps overlap, on one thread of their own."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from tailrace.config import Overlap
from tailrace.engine.stats import Counters
from tailrace.runners.base import Batch, ModelRunner, StatefulRunner


class Device:
    """A runner whose forward passes come one after another.

    Args:
        depth: steps whose forward pass runs while the engine's thread goes on, 0 or 1.
    """

    def __init__(self, runner: ModelRunner, counters: Counters, depth: int) -> None:
        self.runner, self.depth, self._counters = runner, depth, counters
        self._thread = ThreadPoolExecutor(1, "forward") if depth and not streams(runner) else None

    def launch(self, batch: Batch) -> Future[torch.Tensor]:
        """→ the logits. Until they are there, only stream-ordered calls may go to the runner; on the CPU, none."""
        launched: Future[torch.Tensor] = Future()
        if self._thread is None:
            with self._counters.timed("forward"):
                launched.set_result(self.runner.forward(batch))
            return launched
        begun = threading.Event()
        launched = self._thread.submit(self._forward, batch, begun)
        begun.wait()  # else this thread keeps the interpreter as long as it has work
        return launched

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Before the pass that writes to the copies."""
        if copies:
            with self._counters.timed("forward"):
                self.runner.copy_blocks(copies)

    def copy_states(self, copies: list[tuple[int, int]]) -> None:
        """Before the pass that goes on from the copies."""
        if copies and isinstance(self.runner, StatefulRunner):
            with self._counters.timed("forward"):
                self.runner.copy_states(copies)

    def _forward(self, batch: Batch, begun: threading.Event) -> torch.Tensor:
        begun.set()
        with self._counters.timed("forward", lane="device"):
            return self.runner.forward(batch)


def streams(runner: ModelRunner) -> bool:
    """The runner's calls return at once, and what they have launched runs in order."""
    device = getattr(runner, "device", None)
    return isinstance(device, torch.device) and device.type != "cpu"


def overlaps(wanted: Overlap, runner: ModelRunner) -> bool:
    """Whether steps overlap. auto: where the host has nothing else to do. On the CPU the model wants all cores
    itself."""
    return streams(runner) if wanted == "auto" else wanted == "on"
