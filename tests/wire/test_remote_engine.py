"""Engines of another process: what a front end learns when that process is gone."""

from __future__ import annotations

import threading

import msgspec

from tailrace.errors import EngineDeadError
from tailrace.wire.remote_engine import EngineEvent, EngineEventReader


async def test_streams_learn_that_the_owner_is_gone_before_this_process_ends():
    left, closed = threading.Event(), threading.Event()
    lines = iter([msgspec.json.encode(EngineEvent("m", engine="ipc://nowhere")) + b"\n"])

    def read() -> bytes:
        if not (line := next(lines, b"")):
            left.wait(300)
        return line

    states: list[bool] = []

    def close() -> None:
        states.append(engine.wait(0))
        closed.set()

    reader = EngineEventReader(read, close)
    engine = await reader.next_engine("m")
    assert not engine.wait(0)
    left.set()
    assert closed.wait(300)
    assert states == [True]
    assert isinstance(engine.error(), EngineDeadError)
    assert "owns the engine, is gone" in str(engine.error())
