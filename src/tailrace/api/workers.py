"""The other front ends of the same engines, on the same port: processes that this one starts, tells of the engines, and ends.

All of them accept from one listening socket, so a busy one leaves connections to the others. This one owns the engines; when it ends,
however it ends, so do they. One that dies is replaced, and the engines end its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

import msgspec

from tailrace.config import EngineConfig, ServerConfig
from tailrace.errors import TailraceError
from tailrace.wire.remote_engine import Lost, News

log = logging.getLogger(__name__)

REPLACE_AFTER_S = 1.0
POLL_S = 0.2
KILL_AFTER_S = 3.0


class Model(msgspec.Struct):
    """What a front end must know of a model that it serves. engine.model.name: what clients call it. folder: of the tokenizer. defaults:
    sampling fields that requests may leave out."""

    engine: EngineConfig
    folder: str
    defaults: dict[str, float | int] = {}

    @property
    def name(self) -> str:
        """What clients call it."""
        assert self.engine.model.name, "the caller resolved the model, so it has a name"
        return self.engine.model.name


class WorkerStart(msgspec.Struct):
    """The first line that a worker reads. `named`: see FrontEnd. `socket`: the descriptor to accept from."""

    server: ServerConfig
    models: list[Model]
    named: bool
    socket: int


class Workers:
    """So many processes."""

    def __init__(self, count: int, start: WorkerStart | None = None) -> None:
        self._count, self._start = count, start
        self._processes: list[subprocess.Popen[bytes]] = []
        self._engines: dict[str, str] = {}
        self._ending = False

    def launched(self, model: str, url: str) -> None:
        """There is an engine; the first time, start them."""
        self._engines[model] = url
        self._tell(News(model, engine=url))
        while len(self._processes) < self._count:
            self._processes.append(self._spawn())

    def lost(self, model: str, error: TailraceError) -> None:
        """The engine is gone."""
        self._engines.pop(model, None)
        self._tell(News(model, lost=Lost(error.code, str(error))))

    async def watch(self) -> None:
        """Replace those that die, until cancelled."""
        while self._count:
            await asyncio.sleep(POLL_S)
            for place, process in enumerate(self._processes):
                if process.poll() is not None and not self._ending:
                    log.error("front end %d died (%d) and is replaced", process.pid, process.returncode)
                    close(process.stdin)
                    await asyncio.sleep(REPLACE_AFTER_S)
                    if not self._ending:
                        self._processes[place] = self._spawn()

    def drain(self) -> None:
        """Ask them to finish what runs and exit; once, since a second signal would mean at once."""
        if not self._ending:
            self._ending = True
            for process in self._processes:
                process.terminate()

    def stop(self, timeout_s: float, hurry: Callable[[], bool]) -> None:
        """Wait for them so long, or until there is no time left; then end them."""
        self.drain()
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and not hurry() and any(p.poll() is None for p in self._processes):
            time.sleep(POLL_S)
        for process in self._processes:
            close(process.stdin)  # it ends at once
            try:
                process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert self._start is not None
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.api.worker"],
            stdin=subprocess.PIPE,
            pass_fds=(self._start.socket,),
            start_new_session=True,  # the terminal's Ctrl-C is for the first front end, which decides
        )
        say(process.stdin, self._start)
        for model, url in self._engines.items():
            say(process.stdin, News(model, engine=url))
        return process

    def _tell(self, news: News) -> None:
        for process in self._processes:
            say(process.stdin, news)


def say(pipe: IO[bytes] | None, line: msgspec.Struct) -> None:
    """Write a line; a reader that is gone is found out elsewhere."""
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.write(msgspec.json.encode(line) + b"\n")
        pipe.flush()


def close(pipe: IO[bytes] | None) -> None:
    """Close it, whatever its reader does."""
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.close()
