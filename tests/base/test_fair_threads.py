"""Work on threads: users take turns, and a user whose work does not end delays itself alone."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import pytest

from tailrace.base import fair_threads
from tailrace.base.fair_threads import FairThreads

PATIENCE_S = 60


class Gate:
    """Work that does not end until it is told to."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()

    def work(self) -> str:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        return "late"


class Clock:
    """Seconds that stand still, unless work advances them."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run_in_turns(pieces: list[tuple[str, float]], urgent: Collection[str] = ()) -> list[str]:
    """Return the names of the pieces in the order of their turns. The first letter of a name is its user."""
    clock, gate, order = Clock(), Gate(), []
    threads = FairThreads(1, "one", clock=clock)
    held = threads.submit("z", gate.work)
    assert gate.entered.wait(PATIENCE_S)

    def work(name: str, took_s: float) -> None:
        order.append(name)
        clock.now_s += took_s

    waiting = [threads.submit(name[0], partial(work, name, took_s), urgent=name in urgent) for name, took_s in pieces]
    gate.open.set()
    wait([held, *waiting], PATIENCE_S)
    return order


def test_users_take_turns():
    names = ("a1", "a2", "a3", "b1", "c1", "b2")
    assert run_in_turns([(name, 1.0) for name in names]) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert run_in_turns([(name, 0.0) for name in names]) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_turns_follow_the_time_that_work_takes():
    """After one long piece its user waits until the other has had as much."""
    pieces = [("a1", 3.0), ("a2", 3.0), *((f"b{i}", 1.0) for i in range(5))]
    assert run_in_turns(pieces) == ["a1", "b0", "b1", "b2", "a2", "b3", "b4"]


def test_urgent_work_comes_before_the_users_other_work_alone():
    pieces = [(name, 1.0) for name in ("a1", "b1", "a2", "b2", "a3", "a4")]
    assert run_in_turns(pieces, urgent=("a3", "a4")) == ["a3", "b1", "a4", "b2", "a1", "a2"]


def test_a_user_may_take_all_threads_but_those_that_are_left_for_others():
    threads, gate = FairThreads(3, "three", per_user=2), Gate()
    held = [threads.submit("a", gate.work) for _ in range(9)]
    assert threads.submit("b", lambda: 1).result(PATIENCE_S) == 1
    assert [one.running() for one in held[:3]] == [True, True, False]
    gate.open.set()
    assert [one.result(PATIENCE_S) for one in held] == ["late"] * 9


def test_threads_start_with_the_work_and_end_without_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fair_threads, "IDLE_S", 0.01)
    threads, gate = FairThreads(3, "some", per_user=3), Gate()
    assert threads._threads == 0
    held = [threads.submit("a", gate.work) for _ in range(2)]
    assert threads._threads == 2
    gate.open.set()
    wait(held, PATIENCE_S)
    until_s = time.monotonic() + PATIENCE_S
    while threads._threads and time.monotonic() < until_s:
        time.sleep(0.01)
    assert threads._threads == 0
    assert [threads.submit(user, lambda: 2).result(PATIENCE_S) for user in "abc"] == [2, 2, 2]


def test_all_that_waits_can_be_cancelled():
    threads, gate = FairThreads(1, "one"), Gate()
    held = threads.submit("a", gate.work)
    assert gate.entered.wait(PATIENCE_S)
    waiting = [threads.submit(user, lambda: 1) for user in "aabb"]
    threads.cancel_waiting()
    assert all(one.cancelled() for one in waiting)
    gate.open.set()
    assert held.result(PATIENCE_S) == "late"
    assert threads.submit("b", lambda: 2).result(PATIENCE_S) == 2


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
    assert list(threads._line) == [behind]  # its conversation is freed at once
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
    assert threads._line.size == 0


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
    lines = [Walked(line) for line in threads._line._users["a"].lines]
    threads._line._users["a"].lines = (lines[0], lines[1])
    for piece in reversed(pieces):
        assert piece.cancel()
    assert [line.walks for line in lines] == [0, 0]
    assert compared < 5000
    assert threads._line.size == 1
    gate.open.set()


class Walked(OrderedDict[Any, Any]):
    """Counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()
