"""Further front ends of the same engines, on the same port: processes that this front end starts, tells of the engines,
and ends.

All front ends accept from one listening socket, so a busy one leaves connections to the others. This one owns the
engines: when it ends, the workers end too. A worker that dies is replaced, and the engines abort its requests.
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

from tailrace.api.user_table import UserTable
from tailrace.config import EngineConfig, ServerConfig
from tailrace.errors import TailraceError
from tailrace.wire.remote_engine import EngineEvent, EngineFailure

log = logging.getLogger(__name__)

REPLACE_AFTER_S = 1.0
POLL_S = 0.2
KILL_AFTER_S = 3.0


class ServedModel(msgspec.Struct):
    """A model to be served.

    engine: its settings; engine.model.name is what clients call it. folder: of the tokenizer. defaults: sampling fields
    that requests may leave out.
    """

    engine: EngineConfig
    folder: str
    defaults: dict[str, float | int] = {}

    @property
    def name(self) -> str:
        """What clients call the model."""
        assert self.engine.model.name, "the caller resolved the model, so it has a name"
        return self.engine.model.name


class WorkerStart(msgspec.Struct):
    """The first line that a worker reads.

    named: see FrontEnd. socket: the descriptor to accept from. users: that of the UserTable's file; None: there is no
    table. front_end: the worker's number in the table.
    """

    server: ServerConfig
    models: list[ServedModel]
    named: bool
    socket: int
    users: int | None = None
    front_end: int = 0


class Workers:
    """`count` worker processes. table: what all front ends know of users."""

    def __init__(self, count: int, start: WorkerStart | None = None, table: UserTable | None = None) -> None:
        self._count, self._start, self._table = count, start, table
        self._processes: list[subprocess.Popen[bytes]] = []
        self._engines: dict[str, str] = {}
        self._ending = False

    def on_launched(self, model: str, url: str) -> None:
        """An engine runs at this address. Start the workers, if none run yet."""
        self._engines[model] = url
        self._send_event(EngineEvent(model, engine=url))
        while len(self._processes) < self._count:
            self._processes.append(self._spawn_worker(len(self._processes)))

    def on_lost(self, model: str, error: TailraceError) -> None:
        """The engine is gone."""
        self._engines.pop(model, None)
        self._send_event(EngineEvent(model, lost=EngineFailure(error.code, str(error))))

    async def watch(self) -> None:
        """Replace workers that die, until cancelled."""
        while self._count:
            await asyncio.sleep(POLL_S)
            for place, process in enumerate(self._processes):
                if process.poll() is not None and not self._ending:
                    log.error("front end %d died (%d) and is replaced", process.pid, process.returncode)
                    close_pipe(process.stdin)
                    await asyncio.sleep(REPLACE_AFTER_S)
                    if not self._ending:
                        try:
                            self._processes[place] = self._spawn_worker(place)
                        except OSError as error:  # no memory, no files: the next turn tries again
                            log.error("a front end could not be started: %s", error)

    def drain(self) -> None:
        """Ask the workers to finish what runs and to exit. Sent once: a second signal would mean "at once"."""
        if not self._ending:
            self._ending = True
            for process in self._processes:
                process.terminate()

    def stop(self, timeout_s: float, hurry: Callable[[], bool]) -> None:
        """Wait until the workers have exited, the time is over or `hurry` is true; then end them."""
        self.drain()
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and not hurry() and any(p.poll() is None for p in self._processes):
            time.sleep(POLL_S)
        for process in self._processes:
            process.terminate()  # a second signal: its streams end with an error event
        until_s = time.monotonic() + KILL_AFTER_S
        while time.monotonic() < until_s and any(p.poll() is None for p in self._processes):
            time.sleep(POLL_S)
        for process in self._processes:
            close_pipe(process.stdin)  # the worker ends at once
            try:
                process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _spawn_worker(self, place: int) -> subprocess.Popen[bytes]:
        assert self._start is not None
        start = msgspec.structs.replace(self._start, front_end=place + 1)
        if self._table is not None:
            with self._table as table:
                table.forget_running(start.front_end)
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.api.worker"],
            stdin=subprocess.PIPE,
            pass_fds=[file for file in (start.socket, start.users) if file is not None],
            start_new_session=True,  # Ctrl-C in the terminal goes to the first front end alone, which ends the workers
        )
        write_line(process.stdin, start)
        for model, url in self._engines.items():
            write_line(process.stdin, EngineEvent(model, engine=url))
        return process

    def _send_event(self, event: EngineEvent) -> None:
        for process in self._processes:
            write_line(process.stdin, event)


def write_line(pipe: IO[bytes] | None, line: msgspec.Struct) -> None:
    """Write a line. A reader that is gone is noticed elsewhere."""
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.write(msgspec.json.encode(line) + b"\n")
        pipe.flush()


def close_pipe(pipe: IO[bytes] | None) -> None:
    """Close the pipe, whether or not its reader is gone."""
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.close()
