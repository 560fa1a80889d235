"""The standard files of a process: descriptors 0, 1 and 2."""

from __future__ import annotations

import os
import sys

STANDARD = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_standard_files() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that is closed.

    Otherwise a socket or a pipe gets the number, and log lines go there. libuv aborts when it closes such a file. Call
    this before anything else opens a file.
    """
    for number, (name, mode) in enumerate(STANDARD):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
