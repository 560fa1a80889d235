"""Engines that another process owns, one per model. The owner reports them over a pipe, one line of JSON per event::

    {"model": NAME, "engine": URL}                          an engine runs at this address
    {"model": NAME, "lost": {"code": …, "message": …}}      the engine is gone; another may come
    {"model": NAME, "asleep": {…}}                          the engine is gone until a request wants it; what it serves
    {"model": NAME, "asleep": {…}, "lost": {…}}             the same after an attempt to load it, which failed

When the pipe closes, the owner and its engines are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import defaultdict
from collections.abc import Callable

import msgspec

from tailrace.errors import BY_CODE, EngineDeadError, TailraceError
from tailrace.wire.messages import ModelInfo

POLL_S = 0.02


class EngineFailure(msgspec.Struct):
    """Why an engine is gone."""

    code: str
    message: str


OWNER_GONE = EngineFailure(EngineDeadError.code, "the first front end, which owns the engine, is gone")


class EngineEvent(msgspec.Struct, omit_defaults=True):
    """One line of the pipe."""

    model: str
    engine: str | None = None
    lost: EngineFailure | None = None
    asleep: ModelInfo | None = None


class RemoteEngine:
    """An engine of another process, until it is lost. It is an EngineHandle; its owner stops the engine."""

    pid = 0

    def __init__(self, url: str) -> None:
        self.url = url
        self.asleep: ModelInfo | None = None
        self.failure: TailraceError | None = None
        self._gone = threading.Event()

    @property
    def ended_well(self) -> bool:
        """True if the engine sleeps, so its last message is Drained."""
        return self.asleep is not None and self.failure is None

    def mark_lost(self, lost: EngineFailure | None, asleep: ModelInfo | None = None) -> None:
        """Note that the engine is gone, and why. asleep: it is, or was to be, loaded when a request wants it."""
        self.asleep = asleep
        if lost is not None:
            self.failure = BY_CODE.get(lost.code, EngineDeadError)(lost.message)
        self._gone.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once the engine is gone."""
        return self._gone.wait(timeout_s)

    def error(self) -> TailraceError:
        """Return why the engine is gone."""
        return self.failure or EngineDeadError("the engine is gone")

    def stop(self) -> None:
        """Do nothing: the owner stops the engine."""


class EngineEventReader:
    """Reads the pipe in a thread. `next_engine` waits for a model's next engine.

    Args:
        read: blocks until the next line, and returns it; b"" at the end.
        closed: called at the end, in the thread.
    """

    def __init__(self, read: Callable[[], bytes], closed: Callable[[], None]) -> None:
        self._current: dict[str, RemoteEngine] = {}
        self._engines: defaultdict[str, queue.SimpleQueue[RemoteEngine]] = defaultdict(queue.SimpleQueue)
        threading.Thread(target=self._read_events, args=(read, closed), daemon=True, name="engine events").start()

    async def next_engine(self, model: str) -> RemoteEngine:
        """Return the next engine of the model that is not lost already, or one that sleeps."""
        while True:
            with contextlib.suppress(queue.Empty):
                found = self._engines[model].get_nowait()
                if not found.wait(0) or found.asleep is not None:
                    return found
            await asyncio.sleep(POLL_S)

    def _read_events(self, read: Callable[[], bytes], closed: Callable[[], None]) -> None:
        while line := read():
            event = msgspec.json.decode(line, type=EngineEvent)
            if event.engine is not None:
                self._current[event.model] = RemoteEngine(event.engine)
                self._engines[event.model].put(self._current[event.model])
            if event.asleep is not None:
                self._handle_sleep(event)
            elif event.lost is not None and event.model in self._current:
                self._current.pop(event.model).mark_lost(event.lost)
        for engine in self._current.values():
            engine.mark_lost(OWNER_GONE)
        closed()

    def _handle_sleep(self, event: EngineEvent) -> None:
        """Mark the engine that sleeps. If this front end has not seen it, or it could not be started, put one that
        never ran."""
        engine = self._current.pop(event.model, None)
        if engine is not None:
            engine.mark_lost(event.lost, event.asleep)
        else:
            engine = RemoteEngine("")
            engine.mark_lost(event.lost, event.asleep)
            self._engines[event.model].put(engine)
