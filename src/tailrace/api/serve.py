"""Run the HTTP server beside the engine's client: start, watch, drain, stop.

The port is open from the start, with /health at 503 until the engine is ready. SIGTERM and SIGINT let running requests finish
within drain_timeout_s. When the engine dies, every stream has ended with an error, and then the server exits with 1 or
restarts the engine, as configured.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

import uvicorn

from tailrace.config import ServerConfig
from tailrace.errors import TailraceError

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Ends on our word: signals are ours."""

    def install_signal_handlers(self) -> None:
        """None."""


async def serve(app: Any, client: Any, config: ServerConfig, on_ready: Callable[[], None] = lambda: None) -> int:
    """Serve until told to stop; the exit code.

    Raises:
        TailraceError: the engine could not start.
    """
    server = Server(
        uvicorn.Config(
            app, config.host, config.port, log_level="warning", lifespan="off", http="httptools", loop="uvloop",
            timeout_graceful_shutdown=int(config.drain_timeout_s) or 1, access_log=False,
        )
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    serving = asyncio.create_task(server._serve())
    running = asyncio.create_task(run_engine(client, config, on_ready))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((serving, running, stop), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        if running.done():
            return running.result()
        return 0 if stopping.is_set() else 1
    finally:
        for task in (running, stop):
            task.cancel()
        await asyncio.gather(running, stop, return_exceptions=True)
        await client.close()


async def run_engine(client: Any, config: ServerConfig, on_ready: Callable[[], None]) -> int:
    """Start the engine and wait for its death, again and again if it is to be restarted; 1 when it is gone for good."""
    await client.start()
    on_ready()
    while True:
        await client.died.wait()
        log.error("%s", client.error)
        if config.on_engine_death == "exit":
            return 1
        try:
            await client.restart()
        except TailraceError as error:
            log.error("the engine could not be restarted: %s", error)
            return 1
        log.warning("the engine is back")
