"""What a client remembers while its engine sleeps, without an engine."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.errors import EngineDeadError
from tailrace.wire.messages import ModelInfo
from tailrace.wire.sleep_state import NO_SLEEP, SleepState

MODEL = ModelInfo("m", 8, 16, [0])


async def test_a_caller_who_comes_late_does_not_wait():
    """The engine may become ready after the caller has looked, and before the caller waits."""
    state = SleepState(NO_SLEEP)
    state.model = MODEL
    waiting = asyncio.ensure_future(state.wait_until_awake())
    state.begin_load()
    state.end_load()
    await asyncio.wait_for(waiting, 60)
    assert not state.wanted.is_set()


async def test_callers_learn_of_the_load():
    state = SleepState(NO_SLEEP)
    state.model = MODEL
    waiting = [asyncio.ensure_future(state.wait_until_awake()) for _ in range(2)]
    await asyncio.sleep(0)
    assert state.wanted.is_set()
    state.begin_load()
    state.end_load(EngineDeadError("no"))
    for caller in waiting:
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(caller, 60)
    assert not state.wanted.is_set()
    assert state.model is MODEL
