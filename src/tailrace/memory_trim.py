"""Returns memory to the system that was freed and that the C library still keeps."""

from __future__ import annotations

import contextlib
import ctypes


def trim_memory() -> None:
    """Return free memory to the system, if the C library has a call for it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
