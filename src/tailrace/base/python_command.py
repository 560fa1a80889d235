"""The command and the environment of a process of our own: Python with one of our modules."""

from __future__ import annotations

import os
import sys

INHERITED = ("PYTHON", "LC_", "LANG", "TZ", "LD_LIBRARY_PATH", "DYLD_")  # beginnings of names


def make_python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module.

    Modules in the working directory are not found. A model's folder may be the working directory, and a file
    `json.py` in it would run. `PYTHONPATH` is read as usual.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def make_script_command(code: str, *arguments: str) -> list[str]:
    """Return the command that runs a piece of code. Modules in the working directory are not found either."""
    return [sys.executable, "-P", "-c", code, *arguments]


def select_environment() -> dict[str, str]:
    """Return the variables that Python itself needs, for a process that reads what nobody has reviewed: the server's
    keys are not among them."""
    return {name: value for name, value in os.environ.items() if name.startswith(INHERITED)}
