"""The calls of a model's kernels, which can be recorded.

A recorded step is the same calls on the same addresses, without the Python code around them (runners/recorded.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

Call = Callable[[], object]


class Recording(threading.local):
    """The list to which this thread's calls are appended; None: they are not recorded."""

    calls: list[Call] | None = None


recording = Recording()


def launch(kernel: Callable[..., object], *arguments: Any) -> None:
    """Call a function of _cpu that takes addresses and numbers alone, or one that takes arrays, which a recording
    keeps."""
    if recording.calls is not None:
        recording.calls.append(partial(kernel, *arguments))
    kernel(*arguments)


@contextmanager
def noting(calls: list[Call]) -> Iterator[None]:
    """Append this thread's launches to `calls` as well."""
    before, recording.calls = recording.calls, calls
    try:
        yield
    finally:
        recording.calls = before
