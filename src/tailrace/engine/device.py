"""Where forward passes run while the engine goes on: on a GPU in the order of its stream, on the CPU on one thread of their own."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from tailrace.config import Overlap
from tailrace.engine.stats import Counters
from tailrace.runners.base import Batch, ModelRunner


class Device:
    """A runner whose forward passes come one after another, each launched by the engine's thread and awaited there."""

    def __init__(self, runner: ModelRunner, counters: Counters) -> None:
        self._runner, self._counters = runner, counters
        self._thread = None if streams(runner) else ThreadPoolExecutor(1, "forward")

    def launch(self, batch: Batch) -> Future[torch.Tensor]:
        """→ the logits. Whatever else is asked of the runner before they are there must be in order with them: nothing on the CPU."""
        if self._thread is not None:
            begun = threading.Event()
            launched = self._thread.submit(self._forward, batch, begun)
            begun.wait()  # else the interpreter stays with this thread as long as it finds something to do
            return launched
        launched: Future[torch.Tensor] = Future()
        with self._counters.timed("forward"):
            launched.set_result(self._runner.forward(batch))
        return launched

    def _forward(self, batch: Batch, begun: threading.Event) -> torch.Tensor:
        begun.set()
        with self._counters.timed("forward", lane="device"):
            return self._runner.forward(batch)


def streams(runner: ModelRunner) -> bool:
    """Its calls return at once, and what they have launched runs in order."""
    device = getattr(runner, "device", None)
    return isinstance(device, torch.device) and device.type != "cpu"


def overlaps(wanted: Overlap, runner: ModelRunner) -> bool:
    """Whether steps overlap. auto: where the host has nothing else to do. On the CPU the model wants all cores itself."""
    return streams(runner) if wanted == "auto" else wanted == "on"
