"""What an engine's device does, as spans beside those of the engine's thread (engine/stats.py). On a GPU, CUDA events
around each forward pass and each launch of the sampler's kernels; on the CPU, the forward pass."""

from __future__ import annotations

import time
from typing import Any

import torch

from tailrace.engine.engine import Engine
from tailrace.engine.stats import Span


class DeviceLane:
    """Watches one engine. events: (part, start, end); none on the CPU."""

    def __init__(self, engine: Engine) -> None:
        device = getattr(engine.runner, "device", torch.device("cpu"))
        self.on_gpu = device.type == "cuda"
        self.name = torch.cuda.get_device_name(device) if self.on_gpu else "CPU"
        self.engine = engine
        self.events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        if self.on_gpu:
            engine.runner.forward = self.around("forward", engine.runner.forward)  # type: ignore[method-assign]
            # of this engine alone: another one's is another object
            gpu: Any = engine.steps.sampler.backend_for(device)
            gpu.draw = self.around("sample", gpu.draw)  # type: ignore[method-assign]

    def around(self, part: str, call: Any) -> Any:
        def marked(*args: Any) -> Any:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            found = call(*args)
            end.record()
            self.events.append((part, start, end))
            return found

        return marked

    def begin(self) -> None:
        """Start watching. On a GPU, compare its clock with the host's once."""
        self.events.clear()
        if self.on_gpu:
            torch.cuda.synchronize()
            self.zero = torch.cuda.Event(enable_timing=True)
            self.zero.record()
            torch.cuda.synchronize()
            self.start = time.perf_counter()

    def spans(self) -> list[Span]:
        """The device's spans since `begin`, without those in the engine's own trace. Waits for the device."""
        if not self.on_gpu:
            trace = self.engine.counters.trace or []
            if any(span.lane == "device" for span in trace):  # with overlap the forward pass has a thread of its own
                return []
            return [Span(span.part, span.start, span.end, "device") for span in trace if span.part == "forward"]
        torch.cuda.synchronize()
        at = [(part, self.zero.elapsed_time(a), self.zero.elapsed_time(b)) for part, a, b in self.events]
        return [Span(part, self.start + a / 1e3, self.start + b / 1e3, "device") for part, a, b in at]

    def idle(self) -> float:
        """Share of the time between the first and the last span in which the device did none of these."""
        spans = self.spans()
        return 1 - sum(span.end - span.start for span in spans) / (spans[-1].end - spans[0].start)
