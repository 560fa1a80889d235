"""The limits of the system: too low ones are one sentence before anything is imported."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading

import pytest

from tailrace.base import process_limits
from tailrace.base.process_limits import check_limits
from tailrace.errors import ConfigError


def test_too_few_files_are_one_sentence(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (20, 20))
    with pytest.raises(ConfigError, match="20 open files are too few"):
        check_limits()


def start_under(limit: str) -> tuple[int, str]:
    """Return the exit code and stderr of a start under a limit of the shell."""
    command = f'ulimit {limit}; exec "$0" -m tailrace.cli serve --model scripted:next'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit has no effect")
@pytest.mark.parametrize("mib", [100, 180, 220, 300, 700])  # each ended a start at another place
def test_too_little_memory_is_one_sentence(mib: int):
    why = f"{mib} MiB of address space are too little, 1024 MiB and the model's size are needed"
    assert start_under(f"-v {mib << 10}") == (2, f"tailrace: {why}: raise the limit (ulimit -v)\n")


@pytest.mark.skipif(sys.platform != "linux", reason="not every shell has the limit")
def test_too_little_processor_time_is_one_sentence():
    why = "4 s of processor time are too little, 60 s are needed"
    assert start_under("-t 4") == (2, f"tailrace: {why}: raise the limit (ulimit -t)\n")


def test_too_few_threads_are_one_sentence_and_none_is_left(monkeypatch):
    before = threading.active_count()
    start, started = threading.Thread.start, []

    def refuse_the_ninth(thread: threading.Thread) -> None:
        if len(started) == 8:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_ninth)
    with pytest.raises(ConfigError, match=f"{process_limits.MIN_THREADS} threads are needed"):
        check_limits()
    assert threading.active_count() == before


def test_usual_limits_are_enough():
    check_limits()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit has no effect")
def test_threads_that_limit_growth_leave_no_limit():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    inside, leave, entered = threading.Event(), threading.Event(), threading.Event()

    def limit_first() -> None:
        with process_limits.limit_growth(1 << 30):
            inside.set()
            leave.wait(10)

    def limit_then() -> None:
        with process_limits.limit_growth(1 << 30):
            entered.set()

    first, then = threading.Thread(target=limit_first), threading.Thread(target=limit_then)
    first.start()
    inside.wait(10)
    then.start()
    together = entered.wait(0.2)
    leave.set()
    first.join()
    then.join()
    assert not together
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
