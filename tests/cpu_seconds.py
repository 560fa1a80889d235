"""What each test costs in CPU seconds, its child processes' included: `pytest --cpu-seconds=FILE` writes it.

Wall time says little on a machine that others use too. A line is `seconds<TAB>test`; what a test sets up for others
counts as its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="append what each test costs in CPU seconds to FILE")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    file = item.config.getoption("--cpu-seconds")
    if not file:
        return (yield)
    before = spent(os.getpid())
    try:
        return (yield)
    finally:
        with Path(file).open("a") as out:  # one short write: workers of pytest-xdist may share the file
            out.write(f"{max(spent(os.getpid()) - before, 0):.2f}\t{item.nodeid}\n")


def spent(pid: int) -> float:
    """The CPU seconds of a process, of the children it has waited for, and of those that live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended: what it spent is its parent's now
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(map(spent, children(pid)))


def children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):  # it has just ended
                found += map(int, (thread / "children").read_text().split())
    return found
