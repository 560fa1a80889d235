"""A run that ends in time, however slow the machine is: `pytest --until TIME` starts no further test after TIME, in
seconds since 1970, and says loudly how many it has left out; `--order WORD` takes the files in an order that depends on
WORD, so that with another word for each commit all tests come round.

A test that is left out counts as skipped.
"""

from __future__ import annotations

import time
from hashlib import sha256

import pytest

REASON = "left out for want of time"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--until", type=float, metavar="TIME", help="start no test after TIME, in seconds since 1970")
    parser.addoption("--order", metavar="WORD", help="take the files of tests in an order that depends on WORD")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one file stay together: they share what it has made."""
    if word := config.getoption("--order"):
        items.sort(key=lambda item: sha256(f"{word} {item.nodeid.partition('::')[0]}".encode()).digest())


@pytest.hookimpl(tryfirst=True)  # before anything is set up for it
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip(REASON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    missed = [
        report.nodeid for report in skipped if isinstance(report.longrepr, tuple) and REASON in report.longrepr[2]
    ]
    if missed:
        files = sorted({name.partition("::")[0] for name in missed})
        terminalreporter.section(f"{len(missed)} tests {REASON}", sep="!", red=True, bold=True)
        terminalreporter.line(f"in {len(files)} files: {' '.join(files)}")
