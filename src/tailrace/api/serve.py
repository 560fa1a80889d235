"""Runs the application under uvicorn until a signal or the engine's death ends it. Knows no endpoint.

SIGTERM or SIGINT: stop listening, let what runs finish within `drain_timeout_s`, end the rest with an error event, exit
with 0. A second signal exits at once. The engine's death, unless it is to be restarted: every stream ends with an error
event, exit with 1.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from tailrace.api.app import create_app
from tailrace.api.disconnect import end
from tailrace.api.service import Service
from tailrace.config import Config, ServerConfig
from tailrace.wire.aio import AsyncClient

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LAST_WORDS_S = 5  # beyond the drain: for error events to reach their clients
KEEP_ALIVE_S = 75  # longer than the idle time of common proxies, so that they close first


def serve(config: Config, tokenizer: Tokenizer, defaults: Mapping[str, float | int] | None = None) -> int:
    """Serve until it ends; returns the exit code.

    Args:
        config: `model.model` is a folder that exists already (or a scripted model), `model.name` the name clients use.
    """
    assert config.model.name, "the caller resolved the model, so it has a name"
    client = AsyncClient(config.engine, config.server.start_timeout_s)
    app = create_app(client, tokenizer, config.server, config.model.name, defaults)
    server = Server(app.state.service, uvicorn_config(app, config.server))
    gc.collect()
    gc.freeze()  # the tokenizer's tables live as long as the process: collections need not walk them while streams wait
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        try:
            return runner.run(server.until_end())
        except SystemExit as error:  # uvicorn could not listen, and has said so
            return int(error.code or 0)


def uvicorn_config(app: object, config: ServerConfig) -> uvicorn.Config:
    """uvloop and httptools where they are installed; no logging of its own, no WebSockets."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=config.host,
        port=config.port,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(config.drain_timeout_s) + LAST_WORDS_S,
    )


class Server(uvicorn.Server):
    """uvicorn's, which drains our way and ends when the engine does."""

    def __init__(self, service: Service, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    async def until_end(self, sockets: list[socket.socket] | None = None) -> int:
        """Serve; returns the exit code."""
        dead = self._service.supervisor.dead
        watch = asyncio.create_task(self._exit_on(dead))
        try:
            await self.serve(sockets)
        finally:
            await end(watch)
            await self._service.client.close()  # uvicorn skips the lifespan's end when it is forced
        return int(dead.is_set())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal. Unlike uvicorn, do not raise it again after a clean end: the exit code is 0."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        log.info("%s: %s", signal.Signals(sig).name, "at once" if self.force_exit else "finishing what runs")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain while uvicorn waits for the connections to end."""
        draining = asyncio.create_task(self._service.drain(self._service.config.drain_timeout_s))
        try:
            await super().shutdown(sockets)
        finally:
            await end(draining)

    async def _exit_on(self, dead: asyncio.Event) -> None:
        await dead.wait()
        self.should_exit = True
