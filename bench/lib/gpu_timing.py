"""Device time of launches with a cold L2 cache.

A CUDA graph holds a run many times, each after a read of memory larger than the cache. Another graph holds the reads
alone. Replays of both take turns between CUDA events. Their difference is the run, without the host and without launch
overhead. A run that can't be captured is enqueued behind a kernel that only waits, so that the host is ahead there too.
Without a GPU everything runs once and nothing is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Run = Callable[[], object]
FLUSH = 2.5  # size of the memory read between runs, in sizes of the L2 cache
MANY, FEW = 20, 2  # runs in a graph
REPLAY_US = 2000.0  # about how long a replay may take
WAIT_CYCLES = 4_000_000  # 2 ms, in which the host enqueues what can't be captured
WARM_UP = 3


class Time(NamedTuple):
    """us: median over rounds. spread: half of the interquartile range, as a share of us. how: graph, events, once."""

    us: float
    spread: float
    how: str


@dataclass(frozen=True)
class Replay:
    """`count` runs that `begin` enqueues."""

    begin: Run
    count: int
    how: str


class Stopwatch:
    """rounds: turns that each run gets."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        self.device, self.rounds = device, rounds
        l2 = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 4
        self.filler = torch.ones(round(FLUSH * l2) // 4, device=device)
        self.sink = torch.empty((), device=device)
        self.aside = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.nothing = self.replay(lambda: None, MANY) if device.type == "cuda" else None

    def measure(self, runs: dict[str, Run]) -> dict[str, Time]:
        """µs of each run, in turns, so that noise affects all of them alike."""
        if self.nothing is None:
            return {name: Time(host_us(run), float("nan"), "once") for name, run in runs.items()}
        replays = {name: self.replayed(run) for name, run in runs.items()}
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.rounds):
            reading = self.us(self.nothing) / self.nothing.count
            for name, replay in replays.items():
                found[name].append(self.us(replay) / replay.count - reading)
        return {name: summary(values, replays[name].how) for name, values in found.items()}

    def replayed(self, run: Run) -> Replay:
        """The run as a graph, with as many repeats as fit the time."""
        for _ in range(WARM_UP):
            run()
        once = self.us(Replay(run, 1, "events"))
        count = round(max(FEW, min(MANY, REPLAY_US / max(once, 1.0))))
        try:
            return self.replay(run, count)
        except Exception:  # any error of the library when it asks the device for something
            torch.cuda.synchronize()
            return Replay(lambda: self.enqueue(run, count), count, "events")

    def replay(self, run: Run, count: int) -> Replay:
        """The run as a graph.

        Raises:
            RuntimeError: the run can't be captured.
        """
        self.enqueue(run, 1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.aside):  # not torch.cuda.graph, which empties the allocator's cache each time
            graph.capture_begin()
            try:
                self.enqueue(run, count)
            finally:
                graph.capture_end()
        return Replay(graph.replay, count, "graph")

    def enqueue(self, run: Run, count: int) -> None:
        """Enqueue the runs, each with a cold cache."""
        for _ in range(count):
            torch.amax(self.filler, (0,), out=self.sink)
            run()

    def us(self, replay: Replay) -> float:
        """Time of one replay, between events."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if replay.how == "events":
            torch.cuda._sleep(WAIT_CYCLES)
        start.record()
        replay.begin()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3


def summary(values: list[float], how: str) -> Time:
    """The time of one run, from its rounds."""
    middle = statistics.median(values)
    if len(values) < 2:
        return Time(middle, float("nan"), how)
    low, _, high = statistics.quantiles(values, n=4)
    return Time(middle, (high - low) / 2 / middle if middle else float("nan"), how)


def host_us(run: Run) -> float:
    """One run by the host's clock."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e6


def host_times(
    begin: Callable[[], Any], finish: Callable[[Any], object], device: torch.device, rounds: int
) -> tuple[float, float]:
    """Median µs until `begin` returns and until `finish` does, with an idle device."""
    begun, finished = [], []
    for _ in range(rounds):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        pending = begin()
        middle = time.perf_counter()
        finish(pending)
        finished.append((time.perf_counter() - start) * 1e6)
        begun.append((middle - start) * 1e6)
    return statistics.median(begun), statistics.median(finished)
