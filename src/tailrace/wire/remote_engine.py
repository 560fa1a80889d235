"""Engines that another process owns, one per model: what is heard of them over a pipe, one line of JSON per event.

{"model": NAME, "engine": URL}                          there is one to attach to
{"model": NAME, "lost": {"code": …, "message": …}}      it is gone; another may come
the pipe closes                                         their owner is gone, and so is everything
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


class Lost(msgspec.Struct):
    """Why an engine is gone."""

    code: str
    message: str


class News(msgspec.Struct, omit_defaults=True):
    """One line."""

    model: str
    engine: str | None = None
    lost: Lost | None = None


class Attachment:
    """One engine, until it is lost. An EngineHandle; whoever owns the engine stops it."""

    pid = 0

    def __init__(self, url: str) -> None:
        self.url = url
        self._gone = threading.Event()
        self._error: TailraceError = EngineDeadError("the engine is gone")

    def lose(self, lost: Lost) -> None:
        """It is gone."""
        self._error = BY_CODE.get(lost.code, EngineDeadError)(lost.message)
        self._gone.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once it is gone."""
        return self._gone.wait(timeout_s)

    def error(self) -> TailraceError:
        """Why."""
        return self._error

    def stop(self) -> None:
        """Nothing to do."""


class Newsreader:
    """Reads the pipe in a thread; `engine` waits for a model's next engine.

    Args:
        read: blocks for the next line, b"" at the end. closed: called then, in the thread.
    """

    def __init__(self, read: Callable[[], bytes], closed: Callable[[], None]) -> None:
        self._current: dict[str, Attachment] = {}
        self._engines: defaultdict[str, queue.SimpleQueue[Attachment]] = defaultdict(queue.SimpleQueue)
        threading.Thread(target=self._listen, args=(read, closed), daemon=True, name="news of the engine").start()

    async def engine(self, model: str) -> Attachment:
        """The next one that is not lost already."""
        while True:
            with contextlib.suppress(queue.Empty):
                found = self._engines[model].get_nowait()
                if not found.wait(0):
                    return found
            await asyncio.sleep(POLL_S)

    def _listen(self, read: Callable[[], bytes], closed: Callable[[], None]) -> None:
        while line := read():
            news = msgspec.json.decode(line, type=News)
            if news.engine is not None:
                self._current[news.model] = Attachment(news.engine)
                self._engines[news.model].put(self._current[news.model])
            if news.lost is not None and news.model in self._current:
                self._current[news.model].lose(news.lost)
        closed()
