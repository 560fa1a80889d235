"""The asyncio client of an engine process. wire/sync_client.py describes the interface. One task reads the socket, one
watches the process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec

from tailrace.config import EngineConfig
from tailrace.errors import EngineDeadError, EngineError, NotReadyError, TailraceError, describe_error
from tailrace.params import SamplingParams
from tailrace.wire.async_stream import AsyncStream
from tailrace.wire.engine_process import EngineHandle, EngineProcess
from tailrace.wire.messages import (
    NOBODY,
    VERSION,
    Abort,
    Drain,
    EndThoughts,
    Hello,
    ModelInfo,
    Owner,
    PeerCount,
    PeerQuery,
    PeerReply,
    Replay,
    Stats,
)
from tailrace.wire.peer_queries import PendingQuery
from tailrace.wire.pulse import PulseReader, Stall
from tailrace.wire.sockets import AsyncFrontSocket
from tailrace.wire.stream_table import StreamTable

# If writing to all streams takes more than 2 ms, the client pauses twice that long (at most 30 ms) to let other
# requests run. Tokens that arrive meanwhile are merged into larger events. So the streams take a third of the loop's
# time.
SLICE = 64  # streams that are woken before the loop gets a turn
SHORT_S = 0.002
PAUSE = 2.0  # times as long as the round
MAX_PAUSE_S = 0.03


class AsyncClient:
    """The client of one engine; `restart` gives it a new one.

    Args:
        engine: the settings of an engine process that this client starts. Or a function that waits for an engine of
            another process.
        label: the engine's name in log lines.
        pauses: let other requests run on the event loop while many streams are served. False delivers everything at
            once.

    Attributes:
        on_launched, on_lost: called with the address of an engine to attach to, and with the reason when the engine is
            gone.
    """

    def __init__(
        self,
        engine: EngineConfig | Callable[[], Awaitable[EngineHandle]],
        start_timeout_s: float = 600.0,
        pauses: bool = True,
        label: str = "",
    ) -> None:
        self._label = label
        self._engine, self._timeout_s, self._pauses = engine, start_timeout_s, pauses
        self._streams = StreamTable()
        self._streams.on_peer_message = self._on_peer_message
        self._queries: dict[int, PendingQuery] = {}
        self._numbers = count(1)
        self.answer: Callable[[str, str], bytes | None] = lambda question, argument: None
        self.on_launched: Callable[[str], None] = lambda url: None
        self.on_lost: Callable[[TailraceError], None] = lambda error: None
        self._tasks: list[asyncio.Task[None]] = []
        self._drained = asyncio.Event()
        self.error: TailraceError | None = None
        self.died = asyncio.Event()  # set whenever the engine is lost; cleared by a restart
        self._pulse: PulseReader | None = None

    async def start(self) -> ModelInfo:
        """Start the process and wait for Ready.

        Raises:
            TailraceError: the error that the engine reported; EngineDeadError if it reported none or took too long.
        """
        ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._streams.model = None
        if isinstance(self._engine, EngineConfig):
            self._process: EngineHandle = EngineProcess(self._engine, self._label)
        else:
            self._process = await self._engine()
        try:
            self.on_launched(self._process.url)
            self._socket = AsyncFrontSocket(self._process.url)
        except BaseException:
            await asyncio.to_thread(self._process.stop)
            raise
        self._pulse = PulseReader(self._process.url)
        self._tasks = [asyncio.create_task(self._read_messages(ready)), asyncio.create_task(self._watch_process())]
        self._socket.send(Hello())
        waits = [asyncio.create_task(ready.wait()), asyncio.create_task(self.died.wait())]
        try:
            await asyncio.wait(waits, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        if self.error is None and self._streams.model is None:
            self.error = EngineDeadError(f"the engine was not ready within {self._timeout_s:g} s")
        if self.error is None and self._streams.version != VERSION:
            self.error = EngineError(f"the engine speaks version {self._streams.version}, not {VERSION}")
        if self.error is not None:
            error = self.error
            await self.close()
            raise error
        return self.model

    async def restart(self) -> ModelInfo:
        """Start a new engine after the old one died. Earlier streams have failed."""
        await self.close()
        self.error = None
        self.died.clear()
        return await self.start()

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """True if the engine can serve."""
        return self.error is None and self._streams.model is not None

    @property
    def stall(self) -> Stall | None:
        """The current stall, if the engine can serve but a turn of its loop takes too long; else None."""
        return self._pulse.stall() if self.ready and self._pulse is not None else None

    @property
    def loading(self) -> str:
        """The part of its start that the engine is in (wire/pulse.py); "" once it can serve, or if the part is
        unknown."""
        return "" if self.ready or self._pulse is None else self._pulse.loading()

    @property
    def open_ids(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return [id for id, _ in self._streams.open_streams]

    @property
    def model(self) -> ModelInfo:
        """What the engine serves.

        Raises:
            EngineDeadError: it is dead, or not up yet.
        """
        if self._streams.model is None:
            raise self.error or EngineDeadError("the engine is still starting")
        return self._streams.model

    @property
    def stats(self) -> Stats:
        """The latest counters of the engine."""
        return self._streams.stats

    @property
    def wasted_tokens(self) -> int:
        """Tokens sampled after a stop string that only the front end could find."""
        return self._streams.wasted

    @property
    def unacknowledged(self) -> int:
        """Aborts that the engine has not confirmed yet."""
        return len(self._streams.unacknowledged)

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        id: str | None = None,
        priority: int = 0,
        adapter: str = "",
        replay: Replay | None = None,
        owner: Owner = NOBODY,
        reports_progress: bool = False,
    ) -> AsyncStream:
        """Ask for a generation, or for the explanation of one. (More than six parameters: those of a Submit.)"""
        open_stream, message = self._streams.add_stream(
            prompt, params, id, priority, time.time(), adapter, replay, owner
        )
        if self.error is not None:
            self._streams.fail_all(EngineDeadError(str(self.error)))
        else:
            self._socket.send(msgspec.structs.replace(message, reports_progress=True) if reports_progress else message)
        return AsyncStream(open_stream, self._streams, self._cancel_request, self._cancel_threadsafe)

    async def ask(self, question: str, argument: str, timeout_s: float = 1.0) -> list[bytes]:
        """Return the answers of the other front ends of this engine within the time. Front ends without an answer are
        left out."""
        if not self.ready:
            return []
        number = next(self._numbers)
        query = self._queries[number] = PendingQuery()
        self._socket.send(PeerQuery(number, question, argument))
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(query.complete.wait(), timeout_s)
        finally:
            del self._queries[number]
        return query.answers

    async def drain(self, timeout_s: float = 30.0) -> bool:
        """Let the engine finish the running requests and exit. True if it did within the time."""
        if self.error is not None:
            return False
        self._socket.send(Drain())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        return self._streams.drained

    async def close(self) -> None:
        """End the engine and every open stream. Idempotent."""
        self.error = self.error or EngineDeadError("the client was closed")
        self._streams.fail_all(EngineDeadError(str(self.error)))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            self._tasks = []
            self._socket.close()
            await asyncio.to_thread(self._process.stop)

    def _cancel_request(self, message: Abort | EndThoughts) -> None:
        if self.error is None:
            self._socket.send(message)

    def _cancel_threadsafe(self, message: Abort) -> None:
        """Do the work of `_cancel_request`, on any thread and at any moment."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the engine
            self._loop.call_soon_threadsafe(self._cancel_request, message)

    def _on_peer_message(self, message: PeerQuery | PeerCount | PeerReply) -> None:
        """Answer another front end's question, or take its answer."""
        if isinstance(message, PeerQuery):
            self._socket.send(PeerReply(message.asker, message.number, self.answer(message.question, message.argument)))
        elif (query := self._queries.get(message.number)) is not None:
            query.add(message)

    async def _read_messages(self, ready: asyncio.Event) -> None:
        try:
            while True:
                messages = await self._socket.receive()
                begun_s = time.perf_counter()
                woken = self._streams.route_messages(messages)
                if self._streams.model is not None:
                    ready.set()
                if self._streams.drained:
                    self._drained.set()
                for start in range(0, len(woken), SLICE):
                    for open_stream in woken[start : start + SLICE]:
                        open_stream.notify_reader()
                    await asyncio.sleep(0)  # behind those that were woken; others get a turn between
                round_s = time.perf_counter() - begun_s
                if self._pauses and round_s > SHORT_S:
                    await asyncio.sleep(min(PAUSE * round_s, MAX_PAUSE_S))
        except Exception as error:  # no message can be read any more: the engine is as good as dead
            self._on_engine_lost(EngineError(f"the engine can't be understood: {describe_error(error)}"))

    async def _watch_process(self) -> None:
        """Wait for the end of the process, in a thread."""
        process = self._process
        try:
            while not await asyncio.to_thread(process.wait, 0.2):
                pass
        except Exception as error:  # there is no thread: its end would not be noticed
            self._on_engine_lost(EngineError(f"the engine can't be watched: {error}"))
            return
        await asyncio.sleep(2 * MAX_PAUSE_S)  # its last messages may still have to be read
        if self._streams.drained:  # as asked; requests that came too late end as well
            self.error = NotReadyError("the engine has been drained")
            self._streams.fail_all(self.error)
        else:
            self._on_engine_lost(process.error())

    def _on_engine_lost(self, error: TailraceError) -> None:
        """End every open stream with an error, and call `on_lost`: the engine is gone."""
        self.error = error
        self._streams.fail_all(EngineDeadError(str(error)))
        self.died.set()
        self.on_lost(error)
