"""Memory that was freed and that the C library keeps all the same."""

from __future__ import annotations

import contextlib
import ctypes


def trim() -> None:
    """Give it back to the system, where the C library has a call for it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
