"""Memory that was freed but that the C library still keeps, and objects that live as long as the process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc


def trim_memory() -> None:
    """Return free memory to the system, if the C library has a call for it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def freeze_objects() -> None:
    """Exclude all existing objects from garbage collection until the process ends.

    The last collection includes them again: it frees the functions of Triton, which nanobind would otherwise report as
    leaked on stderr.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
