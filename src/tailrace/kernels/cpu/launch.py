"""The calls of a model's kernels, which can be recorded: the same calls again, on the same addresses, do a step's work
without the Python code around them (runners/recorded.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

Call = Callable[[], object]


class Recording(threading.local):
    """Where this thread's calls are noted; None: nowhere."""

    calls: list[Call] | None = None


recording = Recording()


def launch(kernel: Callable[..., object], *arguments: Any) -> None:
    """Call a function of _cpu that takes addresses and numbers alone, or one of arrays, which are then kept."""
    if recording.calls is not None:
        recording.calls.append(partial(kernel, *arguments))
    kernel(*arguments)


@contextmanager
def noting(calls: list[Call]) -> Iterator[None]:
    """This thread's launches are appended to `calls`, too."""
    before, recording.calls = recording.calls, calls
    try:
        yield
    finally:
        recording.calls = before
