"""The engine's heartbeat: a few numbers in a file next to its socket, which both sides map into memory. They show how
long the engine has been in the same turn of its loop, and in which part of the step. No code of the engine need run for
that, so they also show an engine that is stopped, or in a call that never returns.

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import NamedTuple

from tailrace.errors import ConfigError
from tailrace.wire.socket_folder import PULSE

PARTS = (
    "between",
    "receive",
    "plan",
    "draft",
    "forward",
    "wait",
    "mask",
    "sample",
    "verify",
    "commit",
    "observe",
    "send",
    "weights",
    "grammars",
    "cache",
)
LOADING = PARTS[-3:]  # while the engine starts, before its loop begins
BEAT, PART, STEP, LIMIT = range(4)  # float64 each
SIZE = 8 * 4
WAITING = 2  # the parts before this one are outside a step
FIRST = 6  # factor of the limit for the first step: kernels are compiled, memory is touched for the first time


class Stall(NamedTuple):
    """A turn of the engine's loop that takes too long."""

    part: str
    step: int
    seconds: float


def make_pulse_path(url: str) -> Path:
    """Return the file of the engine at this address."""
    return Path(url.removeprefix("ipc://")).parent / PULSE


class Pulse:
    """The engine's side of the heartbeat.

    Args:
        limit_s: a turn of the loop that takes longer is a stall; 0: there are no stalls.

    Raises:
        ConfigError: the file can't be written.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        path = make_pulse_path(url)
        try:
            with path.open("w+b") as file:
                file.write(bytes(SIZE))  # a hole in the file would get its place on a full disk too late
                file.flush()
                self._numbers: memoryview[float] = memoryview(mmap.mmap(file.fileno(), SIZE)).cast("d")
        except OSError as error:  # a full disk, a limit of file sizes
            raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error
        self._numbers[LIMIT] = limit_s

    def beat(self, step: int) -> None:
        """Note the start of a turn of the loop."""
        self._numbers[STEP] = step
        self._numbers[BEAT] = time.monotonic()

    def enter(self, part: str) -> str:
        """Note the part that the engine is in now. Return the part before."""
        before = PARTS[int(self._numbers[PART])]
        self._numbers[PART] = PARTS.index(part) if part in PARTS else 0
        return before

    def stall(self) -> Stall | None:
        """Return the stall if this turn takes too long, else None."""
        return stall_of(self._numbers)


class PulseReader:
    """A front end's side of the heartbeat. Without the file, or before the engine's loop has begun, nothing is
    known."""

    def __init__(self, url: str) -> None:
        self._path = make_pulse_path(url)
        self._mapped: memoryview[float] | None = None

    def stall(self) -> Stall | None:
        """Return the stall if the engine's turn takes too long, else None."""
        numbers = self._map_numbers()
        return None if numbers is None else stall_of(numbers)

    def loading(self) -> str:
        """Return the part of its start that the engine is in; "" if that is unknown."""
        numbers = self._map_numbers()
        part = "" if numbers is None else PARTS[int(numbers[PART])]
        return part if part in LOADING else ""

    def _map_numbers(self) -> memoryview[float] | None:
        if self._mapped is None:
            try:
                with self._path.open("rb") as file:
                    self._mapped = memoryview(mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)).cast("d")
            except (OSError, ValueError):  # not there yet, or not at its size yet
                return None
        return self._mapped


def stall_of(numbers: memoryview[float]) -> Stall | None:
    """Return the stall that the numbers show, or None."""
    beat, part, step, limit_s = numbers.tolist()
    seconds = time.monotonic() - beat
    first = step == 0 and part >= WAITING
    if not beat or not limit_s or seconds <= limit_s * (FIRST if first else 1):
        return None
    return Stall(PARTS[int(part)], int(step), seconds)
