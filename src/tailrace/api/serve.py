"""Runs the application under uvicorn until a signal or the engine's death ends it. Knows no endpoint.

SIGTERM, SIGINT or SIGHUP: stop listening, let what runs finish within `drain_timeout_s`, end the rest with an error
event, exit with 0. A second signal ends the rest at once. The death of the engine, or of the last of several, unless it
is to be restarted: every stream ends with an error event, exit with 1. So it is where one does not come up at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from secrets import token_hex
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import uvicorn

from tailrace.api.app import app_of
from tailrace.api.connection import Connection
from tailrace.api.connection_limits import ConnectionLimits
from tailrace.api.disconnect import cancel_all
from tailrace.api.front_end import FrontEnd
from tailrace.api.listen import bind_sockets
from tailrace.api.user_table import TableLayout, UserTable, make_shared_file
from tailrace.api.workers import ServedModel, Workers, WorkerStart
from tailrace.base.memory_trim import freeze_objects
from tailrace.base.process_limits import allow_files, check_limits
from tailrace.config import ServerConfig
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.remote_engine import EngineEventReader

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LAST_WORDS_S = 5  # beyond the drain: for error events to reach their clients
POLL_S = 0.1  # between two looks for a second signal
FORCED_S = 1.0  # for error events to reach their clients after a second signal
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLLECT_AFTER = (
    50_000,
    20,
    20,
)  # objects, and collections of younger ones; a step of many streams makes hundreds of objects
OTHER_FILES = 64  # open files of a front end besides connections


def serve_models(
    config: ServerConfig, models: Sequence[ServedModel], tokenizers: Sequence[Tokenizer], named: bool = False
) -> int:
    """Serve until it ends; returns the exit code.

    Args:
        models: each one's `engine.model.model` is a folder that exists already (or a scripted model). tokenizers:
            theirs. named: see FrontEnd.

    Raises:
        ConfigError: the address can't be had, or a limit of the system is too low.
    """
    check_limits()
    config = msgspec.structs.replace(config, encryption_key=config.encryption_key or token_hex(32))  # of all front ends
    sockets = bind_sockets(config)
    users = make_shared_file(TableLayout.of(config)) if config.tracks_users and config.front_ends > 1 else None
    table = None if users is None else UserTable(TableLayout.of(config), users)
    front = FrontEnd(config, named, table=table)
    try:
        for model, tokenizer in zip(models, tokenizers, strict=True):
            label, engine = model.name if named else "", model.engine
            client = AsyncClient(engine, config.start_timeout_s, label=label, scheduler=engine.scheduler)
            about = engine.model
            front.add(client, tokenizer, model.name, model.defaults, about.adapters, about.other_names)
        settings = uvicorn_config(app_of(front), config)
        workers = None
        if config.front_ends > 1:
            start = WorkerStart(config, list(models), named, sockets[0].fileno(), users)
            workers = Workers(config.front_ends - 1, start, table)
        return run_server(Server(front, settings, workers), sockets)
    except SystemExit as error:  # stopped before it listened
        return int(error.code or 0)
    finally:
        front.unlock_file()


def serve_attached(
    start: WorkerStart, tokenizers: Sequence[Tokenizer], read: Callable[[], bytes], want: Callable[[str], None]
) -> int:
    """Serve as a further front end until told to end; returns the exit code.

    Args:
        read: waits for the next line of the pipe that tells of the engines (wire/remote_engine.py). want: tells the
            owner of the engines of a model that a request wants, and that sleeps.
    """
    shared = socket.socket(fileno=start.socket)
    events = EngineEventReader(read, closed=end_after_last_words)
    # The owner of the engine restarts it, so wait for another one. Of several engines, a dead one is not replaced while
    # others live.
    several = len(start.models) > 1
    waiting = start.server if several else msgspec.structs.replace(start.server, on_engine_death="restart")
    table = None if start.users is None else UserTable(TableLayout.of(waiting), start.users, start.front_end)
    front = FrontEnd(waiting, start.named, attached=True, table=table)
    for model, tokenizer in zip(start.models, tokenizers, strict=True):
        next_engine = partial(events.next_engine, model.name)
        client = AsyncClient(next_engine, waiting.start_timeout_s, scheduler=model.engine.scheduler)
        client.sleep.on_wanted = partial(want, model.name)
        settings = model.engine.model
        service = front.add(client, tokenizer, model.name, model.defaults, settings.adapters, settings.other_names)
        service.supervisor.owner = False
    try:
        return run_server(Server(front, uvicorn_config(app_of(front, listens_when_ready=True), waiting)), [shared])
    except SystemExit as error:
        return int(error.code or 0)


def end_after_last_words() -> None:
    """End this process once the error events of its streams may have reached their clients. Runs on a thread."""
    time.sleep(FORCED_S)
    os._exit(0)


def run_server(server: Server, sockets: list[socket.socket]) -> int:
    """Run the server in an event loop of its own; returns the exit code."""
    gc.set_threshold(*COLLECT_AFTER)
    freeze_objects()  # collections need not look at what lives as long as the process, such as the tokenizer's tables
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        return runner.run(server.until_end(sockets))


def uvicorn_config(app: object, config: ServerConfig) -> uvicorn.Config:
    """uvicorn's settings: uvloop where it is installed, our connections, none of its logging, no WebSockets."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=config.host,
        port=config.port,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client could name another address, and be another user
        http=partial(Connection, ConnectionLimits(config, allow_files() - OTHER_FILES)),  # type: ignore[arg-type]
        timeout_graceful_shutdown=math.ceil(config.drain_timeout_s) + LAST_WORDS_S,
    )


class Server(uvicorn.Server):
    """uvicorn's server, with our way to drain; it ends when the front end can't go on.

    Args:
        workers: further front ends, which live as long as this one.
    """

    def __init__(self, front: FrontEnd, config: uvicorn.Config, workers: Workers | None = None) -> None:
        super().__init__(config)
        self._front = front
        self._workers = Workers(0) if workers is None else workers
        for name, service in front.services.items():
            service.client.on_launched = partial(self._workers.on_launched, name)
            service.client.on_lost = partial(self._workers.on_lost, name)
            service.client.on_asleep = partial(self._workers.on_asleep, name)
        self._workers.on_wanted = lambda name: front.services[name].client.sleep.want()
        self._workers.on_failed = self._on_workers_failed
        front.others_gone = self._stop_workers  # the workers need the engines until then

    async def until_end(self, sockets: list[socket.socket] | None = None) -> int:
        """Serve; returns the exit code."""
        over = self._front.over
        tasks = [asyncio.create_task(self._exit_on(over)), asyncio.create_task(self._workers.watch())]
        with self._handle_signals():
            try:
                await self.serve(sockets)
            finally:
                await cancel_all(*tasks)
                await self._stop_workers()
                await self._front.close()  # again, in case that the lifespan could not end
        return int(over.is_set())

    @contextlib.contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Handle signals until all is closed; uvicorn does it until it has shut down, and not SIGHUP. A SIGHUP that is
        ignored, as under nohup, stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.getsignal(sig) for sig in SIGNALS}
        handled = [sig for sig in SIGNALS if sig != signal.SIGHUP or before[sig] is signal.SIG_DFL]
        for sig in handled:
            signal.signal(sig, self.handle_exit)
        try:
            yield
        finally:
            for sig in handled:
                signal.signal(sig, before[sig])

    async def _stop_workers(self) -> None:
        over = self._front.over
        timeout_s = self._front.config.drain_timeout_s + LAST_WORDS_S
        await asyncio.to_thread(self._workers.stop, timeout_s, lambda: self.force_exit or over.is_set())

    def _on_workers_failed(self, reason: str) -> None:
        log.error("the server ends: a further front end can't start: %s", reason)
        self._front.over.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. Unlike uvicorn, it is not raised again after a clean end: the exit code is 0."""
        if not self.started:  # it ends once it has started; an error here would be one of the lifespan
            for service in self._front.services.values():
                service.supervisor.drain()
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        log.info("%s: %s", signal.Signals(sig).name, "at once" if self.force_exit else "finishing what runs")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain while uvicorn waits for connections to end, and then for responses in the background."""
        self._workers.drain()
        draining = asyncio.create_task(self._front.drain(self._front.config.drain_timeout_s))
        try:
            await super().shutdown(sockets)
            while self._front.background and not draining.done() and not self.force_exit:
                await asyncio.wait({draining}, timeout=POLL_S)
        finally:
            await cancel_all(draining)
        if self.force_exit:
            await self._end_requests()
            await self.lifespan.shutdown()  # uvicorn leaves it out

    async def _end_requests(self) -> None:
        """End what runs with an error event, and wait a moment for the clients that read it."""
        await self._front.drain(0)
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=FORCED_S)

    async def _exit_on(self, over: asyncio.Event) -> None:
        await over.wait()
        self.should_exit = True
