"""The asyncio client's link to one engine. One task reads the socket, one watches the process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from tailrace.config import EngineConfig
from tailrace.errors import EngineError, TailraceError, describe_error
from tailrace.wire.engine_process import EngineHandle, EngineProcess
from tailrace.wire.messages import Hello, ToEngine
from tailrace.wire.pulse import PulseReader
from tailrace.wire.sleep_state import SleepState
from tailrace.wire.sockets import AsyncFrontSocket
from tailrace.wire.stream_table import StreamTable

# If writing to all streams takes more than 2 ms, the client pauses twice that long (at most 30 ms) to let other
# requests run. Tokens that arrive meanwhile are merged into larger events. So the streams take a third of the loop's
# time.
SLICE = 64  # streams that are woken before the loop gets a turn
SHORT_S = 0.002
PAUSE = 2.0  # times as long as the round
MAX_PAUSE_S = 0.03
LAST_WORDS_S = 2.0  # for the last message of an engine that has ended well


async def find_engine(
    engine: EngineConfig | Callable[[], Awaitable[EngineHandle]], label: str, sleep: SleepState
) -> EngineHandle:
    """Return the next engine: a new process, or what the function returns. If the engine sleeps, wait until it is
    wanted.

    Raises:
        TailraceError: there is none.
    """
    asleep = sleep.model is not None
    if isinstance(engine, EngineConfig):
        if asleep:
            await sleep.wanted.wait()
        return EngineProcess(engine, label, sleep.changes)
    while True:
        found = await engine()
        if not asleep or found.asleep is None or not found.wait(0):
            return found
        if found.failure is not None:
            raise found.failure


class EngineLink:
    """A link to the engine of a process, which ends with the link.

    Args:
        streams: get the engine's messages. pauses: see AsyncClient.
        on_end: called when the engine is gone, with the reason. If it has drained, `streams.drained` says so.

    Attributes:
        ready, drained, gone: set when the engine has said Ready or Drained, and when `on_end` was called.
    """

    def __init__(
        self, process: EngineHandle, streams: StreamTable, pauses: bool, on_end: Callable[[TailraceError], None]
    ) -> None:
        self.process = process
        self._streams, self._pauses, self._on_end = streams, pauses, on_end
        self._socket = AsyncFrontSocket(process.url)
        self.pulse = PulseReader(process.url)
        self.ready, self.drained, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tasks = [asyncio.create_task(self._read_messages()), asyncio.create_task(self._watch_process())]
        self.send(Hello())

    def send(self, message: ToEngine) -> None:
        """Send one message."""
        self._socket.send(message)

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the engine is ready or gone, at most so long."""
        waits = [asyncio.create_task(self.ready.wait()), asyncio.create_task(self.gone.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def close(self) -> None:
        """End the engine."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        await asyncio.to_thread(self.process.stop)

    async def _read_messages(self) -> None:
        try:
            while True:
                messages = await self._socket.receive()
                begun_s = time.perf_counter()
                woken = self._streams.route_messages(messages)
                if self._streams.model is not None:
                    self.ready.set()
                if self._streams.drained is not None:
                    self.drained.set()
                for start in range(0, len(woken), SLICE):
                    for open_stream in woken[start : start + SLICE]:
                        open_stream.notify_reader()
                    await asyncio.sleep(0)  # behind those that were woken; others get a turn between
                round_s = time.perf_counter() - begun_s
                if self._pauses and round_s > SHORT_S:
                    await asyncio.sleep(min(PAUSE * round_s, MAX_PAUSE_S))
        except Exception as error:  # no message can be read any more: the engine is as good as dead
            self._end(EngineError(f"the engine can't be understood: {describe_error(error)}"))

    async def _watch_process(self) -> None:
        """Wait for the end of the process, in a thread."""
        process = self.process
        try:
            while not await asyncio.to_thread(process.wait, 0.2):
                pass
        except Exception as error:  # there is no thread: its end would not be noticed
            self._end(EngineError(f"the engine can't be watched: {error}"))
            return
        await asyncio.sleep(2 * MAX_PAUSE_S)  # its last messages may still have to be read
        if process.ended_well and self.ready.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.drained.wait(), LAST_WORDS_S)
        self._end(process.error())

    def _end(self, error: TailraceError) -> None:
        self.gone.set()
        self._on_end(error)
