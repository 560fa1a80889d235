"""Work on threads: users take turns, and a user whose work does not end delays itself alone."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from tailrace.api.fair_threads import FairThreads

PATIENCE_S = 60


class Gate:
    """Work that does not end until it is told to."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()

    def work(self) -> str:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        return "late"


def test_users_take_turns():
    threads, gate, order = FairThreads(1, "one"), Gate(), []
    held = threads.submit("z", gate.work)
    assert gate.entered.wait(PATIENCE_S)
    waiting = [threads.submit(name[0], lambda name=name: order.append(name)) for name in ("a1", "a2", "a3", "b1", "c1")]
    waiting.append(threads.submit("b", lambda: order.append("b2")))
    gate.open.set()
    wait([held, *waiting], PATIENCE_S)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_user_whose_work_does_not_end_delays_itself_alone():
    threads, gate = FairThreads(2, "two"), Gate()
    held = [threads.submit("a", gate.work) for _ in range(50)]
    assert gate.entered.wait(PATIENCE_S)
    for i in range(5):
        assert threads.submit("b", lambda i=i: i).result(PATIENCE_S) == i
    assert not held[1].running()  # one piece at a time
    gate.open.set()
    assert [one.result(PATIENCE_S) for one in held] == ["late"] * 50


def test_work_that_is_cancelled_before_its_turn_is_never_done():
    threads, gate, done = FairThreads(1, "one"), Gate(), []
    held = threads.submit("a", gate.work)
    assert gate.entered.wait(PATIENCE_S)
    left = threads.submit("a", lambda: done.append(1))
    behind = threads.submit("a", lambda: 3)
    assert left.cancel()
    assert [*threads._lines["a"]] == [behind]  # its conversation is freed at once
    gate.open.set()
    assert held.result(PATIENCE_S) == "late"
    assert behind.result(PATIENCE_S) == 3
    assert not done


class PanicError(BaseException):
    """As libraries in Rust have it."""


@pytest.mark.parametrize("error", [ValueError, PanicError])
def test_what_fails_fails_for_itself_alone(error):
    threads = FairThreads(1, "one")

    def fail() -> None:
        raise error

    with pytest.raises(error):
        threads.submit("a", fail).result(PATIENCE_S)
    assert threads.submit("a", lambda: 2).result(PATIENCE_S) == 2


def test_nothing_is_kept_of_work_that_is_done():
    threads = FairThreads(2, "two")

    class Held:
        def work(self) -> int:
            return 1

    def submit() -> tuple[weakref.ref[Held], weakref.ref[Future[int]]]:
        held = Held()
        done = threads.submit("a", held.work)
        assert done.result(PATIENCE_S) == 1
        return weakref.ref(held), weakref.ref(done)

    found = submit()
    threads.submit("b", lambda: None).result(PATIENCE_S)
    threads.submit("a", lambda: None).result(PATIENCE_S)  # the user's earlier piece has been dropped by now
    gc.collect()
    assert [one() for one in found] == [None, None]
    assert not threads._lines


def test_a_line_is_not_walked_for_each_piece_that_is_withdrawn(monkeypatch: pytest.MonkeyPatch):
    """Each future is compared, or hashed, a few times at most."""
    compared = 0

    def count(one: object, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    threads, gate = FairThreads(1, "one"), Gate()
    threads.submit("a", gate.work)
    assert gate.entered.wait(PATIENCE_S)
    monkeypatch.setattr(Future, "__eq__", count)
    monkeypatch.setattr(Future, "__hash__", object.__hash__)
    pieces = [threads.submit("a", lambda: None) for _ in range(1000)]
    walked = Walked(threads._lines["a"])
    threads._lines["a"] = walked
    for piece in reversed(pieces):
        assert piece.cancel()
    assert walked.walks == 0
    assert compared < 5000
    assert "a" not in threads._lines
    gate.open.set()


class Walked(OrderedDict[Any, Any]):
    """Counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()
