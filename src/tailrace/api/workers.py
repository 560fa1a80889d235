"""Further front ends of the same engines, on the same port: processes that this front end starts, tells of the engines,
and ends.

All front ends accept from one listening socket, so a busy one leaves connections to the others. This one owns the
engines: when it ends, the workers end too. A worker that dies is replaced, and the engines abort its requests. If a
worker can't start at all, the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable
from typing import IO

import msgspec

from tailrace.api.user_table import UserTable
from tailrace.base.reporting_child import make_reporting_command
from tailrace.config import EngineConfig, ServerConfig
from tailrace.errors import TailraceError
from tailrace.wire.messages import ModelInfo
from tailrace.wire.remote_engine import EngineEvent, EngineFailure

log = logging.getLogger(__name__)

REPLACE_AFTER_S, MAX_WAIT_S = 1.0, 60.0  # between a worker's end and the next one, which each failure doubles
LASTING_S = 60.0  # a worker that served so long has not failed
MAX_FAILURES = 3  # of a worker that has never started
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


class WorkerStatus(msgspec.Struct, omit_defaults=True):
    """A line that a worker writes: it serves from now on, why it ends, or the model that a request wants, and that
    sleeps."""

    started: bool = False
    message: str = ""
    wanted: str = ""


class WorkerPlace:
    """A worker, and those that replace it.

    Attributes:
        started: the worker has reported that it serves. served: any worker of this place has.
        failures: workers in a row that ended within LASTING_S.
        due: when the next worker starts; None while this one runs.
    """

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number, self.served, self.failures = number, False, 0
        self.put(process)

    def put(self, process: subprocess.Popen[bytes]) -> None:
        """Begin with another worker."""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self.process, self.begun_s = process, time.monotonic()
        self.started, self.reason = False, ""
        self.due: float | None = None

    def read_status(self) -> set[str]:
        """Read what the worker has reported. Return the models that it wants."""
        assert self.process.stdout is not None
        wanted: set[str] = set()
        with contextlib.suppress(OSError, ValueError):  # the pipe is closed, or another program wrote to it
            for line in (self.process.stdout.read() or b"").splitlines():
                status = msgspec.json.decode(line, type=WorkerStatus)
                self.started, self.reason = self.started or status.started, status.message or self.reason
                wanted |= {status.wanted} - {""}
        self.served = self.served or self.started
        return wanted

    def end(self) -> float:
        """Note that the worker has ended. Return the seconds until the next one starts."""
        close_pipe(self.process.stdin)
        close_pipe(self.process.stdout)
        lasted = self.started and time.monotonic() - self.begun_s > LASTING_S
        self.failures = 1 if lasted else self.failures + 1
        wait_s = min(REPLACE_AFTER_S * 2 ** (self.failures - 1), MAX_WAIT_S)
        self.due = time.monotonic() + wait_s
        return wait_s

    @property
    def how(self) -> str:
        """Why the worker has ended."""
        return self.reason or f"exit code {self.process.returncode}"


class Workers:
    """`count` worker processes.

    Args:
        table: what all front ends know of users.

    Attributes:
        on_failed: called with the reason if a worker can't start at all. on_wanted: called with a model that sleeps.
    """

    def __init__(self, count: int, start: WorkerStart | None = None, table: UserTable | None = None) -> None:
        self._count, self._start, self._table = count, start, table
        self._places: list[WorkerPlace] = []
        self._engines: dict[str, EngineEvent] = {}  # of each model that runs or sleeps
        self._ending = False
        self.on_failed: Callable[[str], None] = lambda reason: None
        self.on_wanted: Callable[[str], None] = lambda model: None

    def on_launched(self, model: str, url: str) -> None:
        """An engine runs at this address. Start the workers, if none run yet."""
        self._engines[model] = EngineEvent(model, engine=url)
        self._send_event(self._engines[model])
        while len(self._places) < self._count:
            self._places.append(WorkerPlace(len(self._places), self._spawn_worker(len(self._places))))

    def on_lost(self, model: str, error: TailraceError) -> None:
        """The engine is gone."""
        self._engines.pop(model, None)
        self._send_event(EngineEvent(model, lost=EngineFailure(error.code, str(error))))

    def on_asleep(self, model: str, info: ModelInfo, error: TailraceError | None) -> None:
        """The engine sleeps. error: it could not be loaded."""
        self._engines[model] = EngineEvent(model, asleep=info)
        failure = None if error is None else EngineFailure(error.code, str(error))
        self._send_event(EngineEvent(model, lost=failure, asleep=info))

    async def watch(self) -> None:
        """Replace workers that die, until cancelled."""
        while self._count:
            await asyncio.sleep(POLL_S)
            for place in self._places:
                if not self._ending:
                    self._check(place)

    def _check(self, place: WorkerPlace) -> None:
        """See whether a worker has ended, and start the next one when it is due. Each further failure doubles the wait.
        Before the first start succeeds, MAX_FAILURES failures are final."""
        assert self._start is not None
        if place.due is not None:
            if time.monotonic() >= place.due:
                self._replace(place)
            return
        for model in place.read_status():
            self.on_wanted(model)
        limit_s = self._start.server.start_timeout_s
        if place.process.poll() is None:
            if not place.started and time.monotonic() - place.begun_s > limit_s:
                place.reason = f"it was not ready within {limit_s:g} s"
                place.process.kill()
            return
        wait_s, pid = place.end(), place.process.pid
        if not place.served and (place.failures >= MAX_FAILURES or wait_s > limit_s):
            self._ending = True
            self.on_failed(place.how)
            return
        log.error("front end %d died (%s) and is replaced in %g s", pid, place.how, wait_s)

    def _replace(self, place: WorkerPlace) -> None:
        try:
            place.put(self._spawn_worker(place.number))
        except OSError as error:  # no memory, no files
            log.error("a front end could not be started (%s); the next try is in %g s", error, place.end())

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
            close_pipe(process.stdout)
            try:
                process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [place.process for place in self._places]

    def _spawn_worker(self, place: int) -> subprocess.Popen[bytes]:
        assert self._start is not None
        start = msgspec.structs.replace(self._start, front_end=place + 1)
        if self._table is not None:
            with self._table as table:
                table.forget_running(start.front_end)
        process = subprocess.Popen(
            make_reporting_command("tailrace.api.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[file for file in (start.socket, start.users) if file is not None],
            start_new_session=True,  # Ctrl-C in the terminal goes to the first front end alone, which ends the workers
        )
        write_line(process.stdin, start)
        for event in self._engines.values():
            write_line(process.stdin, event)
        return process

    def _send_event(self, event: EngineEvent) -> None:
        for process in self._processes:
            write_line(process.stdin, event)


def write_line(pipe: IO[bytes] | None, line: msgspec.Struct) -> None:
    """Write a line. A reader that is gone is noticed elsewhere."""
    assert pipe is not None
    with contextlib.suppress(OSError, ValueError):  # ValueError: this side is closed already
        pipe.write(msgspec.json.encode(line) + b"\n")
        pipe.flush()


def close_pipe(pipe: IO[bytes] | None) -> None:
    """Close the pipe, whether or not its reader is gone."""
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.close()
