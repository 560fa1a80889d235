"""Turns between users: by the time that their work took, without savings, and with debts."""

from __future__ import annotations

from collections import Counter

import pytest

from tailrace.base import fair_line
from tailrace.base.fair_line import FairLine, may_wait, weigh_equally


def run_next(line: FairLine[str], took_s: float = 1.0) -> str:
    """Take a piece and finish it at once."""
    taken = line.take()
    assert taken is not None
    line.finish(taken[0], took_s)
    return taken[1]


def test_who_comes_late_saves_no_turns():
    line: FairLine[str] = FairLine()
    for i in range(20):
        line.add("a", f"a{i}")
    for _ in range(10):
        run_next(line)
    for i in range(3):
        line.add("b", f"b{i}")
    assert [run_next(line) for _ in range(6)] == ["b0", "a10", "b1", "a11", "b2", "a12"]


def test_who_leaves_with_more_comes_back_with_more():
    line: FairLine[str] = FairLine()
    line.add("a", "a0")
    for i in range(9):
        line.add("b", f"b{i}")
    assert [run_next(line, 5.0 if i == 0 else 1.0) for i in range(2)] == ["a0", "b0"]
    line.add("a", "a1")
    assert [run_next(line) for _ in range(6)] == ["b1", "b2", "b3", "b4", "a1", "b5"]


def test_debts_are_few_and_end_with_the_last_piece(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fair_line, "MAX_DEBTORS", 3)
    line: FairLine[str] = FairLine()
    line.add("b", "b0")
    line.add("b", "b1")
    for i in range(9):
        line.add(f"a{i}", "x")
    for _ in range(10):
        run_next(line)
    assert len(line._debts) == 3
    run_next(line)
    assert line.size == len(line._debts) == len(line._users) == len(line._turns) == 0


def test_memory_is_that_of_what_waits():
    """Pieces that come and are withdrawn leave nothing."""
    line: FairLine[int] = FairLine()
    line.add("b", -1)
    assert line.take() == ("b", -1)
    for i in range(10_000):
        line.add(f"a{i % 7}", i)
        line.discard(f"a{i % 7}", i)
    assert (line.size, len(line._users)) == (1, 1)
    assert len(line._turns) <= fair_line.MAX_STALE + 2
    assert line.take() is None
    line.add("a", 1)
    assert line.take() == ("a", 1)


def test_a_user_runs_as_much_at_once_as_it_may():
    line: FairLine[int] = FairLine(per_user=2)
    for i in range(4):
        line.add("a", i)
    assert [line.take(), line.take(), line.take()] == [("a", 0), ("a", 1), None]
    line.finish("a", 1.0)
    assert [line.take(), line.take()] == [("a", 2), None]


def test_turns_are_by_weight():
    line: FairLine[str] = FairLine()
    for i in range(30):
        line.add("heavy", f"h{i}", weight=3)
        line.add("light", f"l{i}")
    taken = "".join(run_next(line) for _ in range(20))
    assert taken.count("h") == 15


def test_places_are_by_weight():
    waiting, weights = Counter({"heavy": 5, "light": 3}), {"heavy": 3}

    def weigh(user: str) -> int:
        return weights.get(user, 1)

    assert may_wait(waiting, "heavy", 8, weigh)
    assert not may_wait(waiting, "light", 8, weigh)
    assert may_wait(waiting, "light", 9, weigh)
    assert may_wait(waiting, "new", 8, weigh_equally)
