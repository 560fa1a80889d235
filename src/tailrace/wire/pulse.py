"""The engine's pulse: a few numbers in a file that both sides map, next to its socket. Whoever can see them knows since when the engine has
been busy with the same turn of its loop, and with which part of the step; nothing in the engine need run for that, so it also shows
an engine that is stopped as a whole, or that is in a call which never comes back.

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import NamedTuple

PARTS = (
    "between",
    "receive",
    "plan",
    "guess",
    "forward",
    "wait",
    "mask",
    "sample",
    "verify",
    "commit",
    "observe",
    "send",
)
BEAT, PART, STEP, LIMIT = range(4)  # float64 each
SIZE = 8 * 4
WAITING = 2  # the parts before this one are not of a step
FIRST = 6  # the first step may take so many times the limit: kernels are compiled, memory is touched for the first time


class Stall(NamedTuple):
    """The engine has been in this turn of its loop for so long."""

    part: str
    step: int
    seconds: float


def place(url: str) -> Path:
    """Where the pulse of the engine at this address is."""
    return Path(url.removeprefix("ipc://")).parent / "pulse"


class Pulse:
    """The engine's side.

    Args:
        limit_s: a turn of the loop that takes longer is a stall; 0: none is.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        with place(url).open("w+b") as file:
            os.ftruncate(file.fileno(), SIZE)
            self._numbers: memoryview[float] = memoryview(mmap.mmap(file.fileno(), SIZE)).cast("d")
        self._numbers[LIMIT] = limit_s

    def beat(self, step: int) -> None:
        """Another turn of the loop begins."""
        self._numbers[STEP] = step
        self._numbers[BEAT] = time.monotonic()

    def enter(self, part: str) -> str:
        """It is in this part now → where it was."""
        before = PARTS[int(self._numbers[PART])]
        self._numbers[PART] = PARTS.index(part) if part in PARTS else 0
        return before

    def stall(self) -> Stall | None:
        """Whether this turn takes too long."""
        return stall_of(self._numbers)


class PulseReader:
    """A front end's side. No file, or an engine that has not begun its loop: nothing is known."""

    def __init__(self, url: str) -> None:
        self._path = place(url)
        self._numbers: memoryview[float] | None = None

    def stall(self) -> Stall | None:
        """Whether the engine's turn takes too long."""
        if self._numbers is None:
            try:
                with self._path.open("rb") as file:
                    self._numbers = memoryview(mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)).cast("d")
            except (OSError, ValueError):  # not there yet, or not at its size yet
                return None
        return stall_of(self._numbers)


def stall_of(numbers: memoryview[float]) -> Stall | None:
    """What the numbers say."""
    beat, part, step, limit_s = numbers.tolist()
    seconds = time.monotonic() - beat
    first = step == 0 and part >= WAITING
    if not beat or not limit_s or seconds <= limit_s * (FIRST if first else 1):
        return None
    return Stall(PARTS[int(part)], int(step), seconds)
