"""When the engine's loop ends by itself."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tailrace.engine import loop as module
from tailrace.engine.loop import FIRST_REQUEST_S, Loop
from tailrace.wire.messages import Sleep


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    return now


def make_loop(after: float) -> Loop:
    """A loop with nothing to do."""
    loop = object.__new__(Loop)
    loop.engine = SimpleNamespace(has_work=False)  # type: ignore[assignment]
    loop.adapters = SimpleNamespace(loading=False)  # type: ignore[assignment]
    loop.draining = loop.sleeping = False
    loop.sleep_after, loop.idle_since_s = after, 100.0 + FIRST_REQUEST_S
    return loop


def test_an_idle_engine_ends_after_its_time(clock):
    loop = make_loop(10.0)
    clock[0] = 114.9  # the requests that have woken it get a few seconds more
    assert not loop.is_over()
    loop.engine.has_work = True  # type: ignore[misc]
    assert not loop.is_over()
    loop.engine.has_work = False  # type: ignore[misc]
    clock[0] = 124.8
    assert not loop.is_over()
    clock[0] = 124.9
    assert loop.is_over()


def test_without_a_time_it_never_ends(clock):
    loop = make_loop(0.0)
    clock[0] = 1e9
    assert not loop.is_over()


@pytest.mark.parametrize("busy", ["engine", "adapters"])
def test_an_engine_that_has_something_to_do_ignores_a_wish_to_sleep(clock, busy: str):
    loop = make_loop(10.0)
    setattr(*{"engine": (loop.engine, "has_work"), "adapters": (loop.adapters, "loading")}[busy], True)
    loop.fall_asleep(Sleep())
    assert not loop.is_over()
    setattr(*{"engine": (loop.engine, "has_work"), "adapters": (loop.adapters, "loading")}[busy], False)
    assert not loop.is_over()  # the wish is forgotten: who wants it asks again
    loop.fall_asleep(Sleep())
    assert loop.is_over()
