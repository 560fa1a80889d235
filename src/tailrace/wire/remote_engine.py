"""Engines that another process owns, one per model. That process tells of them over a pipe, one line of JSON per event:

{"model": NAME, "engine": URL}                          an engine runs at this address
{"model": NAME, "lost": {"code": …, "message": …}}      the engine is gone; another may come
the pipe closes                                         the owner is gone, and its engines with it
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

POLL_S = 0.02


class EngineFailure(msgspec.Struct):
    """Why an engine is gone."""

    code: str
    message: str


class EngineEvent(msgspec.Struct, omit_defaults=True):
    """One line of the pipe."""

    model: str
    engine: str | None = None
    lost: EngineFailure | None = None


class RemoteEngine:
    """An engine of another process, until it is lost. An EngineHandle; its owner stops the engine."""

    pid = 0

    def __init__(self, url: str) -> None:
        self.url = url
        self._gone = threading.Event()
        self._error: TailraceError = EngineDeadError("the engine is gone")

    def lose(self, lost: EngineFailure) -> None:
        """The engine is gone."""
        self._error = BY_CODE.get(lost.code, EngineDeadError)(lost.message)
        self._gone.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once the engine is gone."""
        return self._gone.wait(timeout_s)

    def error(self) -> TailraceError:
        """Why the engine is gone."""
        return self._error

    def stop(self) -> None:
        """Nothing: the owner stops it."""


class EngineEventReader:
    """Reads the pipe in a thread; `next_engine` waits for a model's next engine.

    Args:
        read: blocks for the next line, b"" at the end. closed: called then, in the thread.
    """

    def __init__(self, read: Callable[[], bytes], closed: Callable[[], None]) -> None:
        self._current: dict[str, RemoteEngine] = {}
        self._engines: defaultdict[str, queue.SimpleQueue[RemoteEngine]] = defaultdict(queue.SimpleQueue)
        threading.Thread(target=self._listen, args=(read, closed), daemon=True, name="engine events").start()

    async def next_engine(self, model: str) -> RemoteEngine:
        """The next engine of the model that is not lost already."""
        while True:
            with contextlib.suppress(queue.Empty):
                found = self._engines[model].get_nowait()
                if not found.wait(0):
                    return found
            await asyncio.sleep(POLL_S)

    def _listen(self, read: Callable[[], bytes], closed: Callable[[], None]) -> None:
        while line := read():
            event = msgspec.json.decode(line, type=EngineEvent)
            if event.engine is not None:
                self._current[event.model] = RemoteEngine(event.engine)
                self._engines[event.model].put(self._current[event.model])
            if event.lost is not None and event.model in self._current:
                self._current[event.model].lose(event.lost)
        closed()
