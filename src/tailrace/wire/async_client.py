"""The asyncio client of an engine process; interface in wire/sync_client.py. One task reads the socket, one watches the process; a
stream wakes once per frame, however many events it holds."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

from tailrace.config import EngineConfig
from tailrace.errors import EngineDeadError, EngineError, NotReadyError, TailraceError
from tailrace.params import SamplingParams
from tailrace.wire.engine_process import EngineHandle, EngineProcess
from tailrace.wire.interval import Interval
from tailrace.wire.messages import (
    VERSION,
    Abort,
    Drain,
    Hello,
    ModelInfo,
    PeerCount,
    PeerQuery,
    PeerReply,
    SequenceEvent,
    Stats,
)
from tailrace.wire.pulse import PulseReader, Stall
from tailrace.wire.sockets import AsyncFrontSocket
from tailrace.wire.stream import Stream
from tailrace.wire.stream_table import OpenStream, StreamTable


class Waiter:
    """Wakes whoever waits for a stream's next events, at its interval. Apart from the stream, so that the client does not hold it."""

    def __init__(self) -> None:
        self.interval = Interval()
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        """Until `wake`."""
        self._future = asyncio.get_running_loop().create_future()
        await self._future

    def stir(self, open_stream: OpenStream) -> None:
        """Something has come, or it has ended."""
        if self.interval.due(open_stream):
            self.wake()
        elif self.interval.seconds and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.interval.left_s, self._ring)

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _ring(self) -> None:
        self._timer = None
        self.wake()


class AsyncStream(Stream):
    """Iterating yields lists of events: all that came since the last; `next` gives one."""

    def __init__(self, client: AsyncClient, open_stream: OpenStream) -> None:
        super().__init__(open_stream, client._streams, client._cancel, client._abandon)
        self._waiter = Waiter()
        open_stream.wake = self._waiter.stir

    async def next(self) -> list[SequenceEvent]:
        """All events that came since the last time; waits for one, and for as many as its interval says. None are left where the list is
        empty."""
        open_stream, interval = self._account, self._waiter.interval
        while not open_stream.events or not interval.due(open_stream):
            if not open_stream.open:
                return []
            await self._waiter.wait()
        interval.given(open_stream)
        return open_stream.take()

    async def __aiter__(self) -> AsyncIterator[list[SequenceEvent]]:
        try:
            while events := await self.next():
                yield events
        finally:  # also when the task is cancelled or the iterator closed
            self.abort("iteration ended")

    def space(self, tokens: int, seconds: float) -> None:
        """Give tokens not one by one: see `Interval`."""
        self._waiter.interval = Interval(tokens, seconds)

    def bound(self, max_bytes: int, full: Callable[[], None]) -> None:
        """Call `full` whenever more than so many bytes (about) have arrived and were not fetched."""
        self._full = full  # which may hold the stream; were it the open_stream's, nobody could abandon the stream
        stream = weakref.ref(self)

        def tell() -> None:
            if (held := stream()) is not None:
                held._full()

        self._account.max_bytes, self._account.full = max_bytes, tell

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.abort()


# A round of all streams that takes long is followed by a rest: meanwhile others get their turn, and what arrives is joined, so that the
# next round has larger pieces, not more of them. The streams take a third of the loop's time then, and wait 30 ms at most.
SLICE = 64  # streams that have their turn at once
SHORT_S = 0.002
REST = 2.0  # of the round's own length
MAX_REST_S = 0.03


class Question:
    """What the other front ends have answered so far."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.complete = asyncio.Event()
        self._open: int | None = None  # None until it is known how many were asked
        self._heard = 0

    def note(self, message: PeerCount | PeerReply) -> None:
        """One more word on it."""
        if isinstance(message, PeerCount):
            self._open = message.count
        else:
            self._heard += 1
            if message.data is not None:
                self.answers.append(message.data)
        if self._heard == self._open:
            self.complete.set()


class AsyncClient:
    """Of one engine; `restart` gives it a new one.

    Args:
        engine: the settings of an engine process of its own, or what gives an engine that another process owns, waiting for it.
        label: the lines that an own engine logs name it so.
        rests: many streams leave the event loop time for others; False hands on everything at once.

    Attributes:
        launched, lost: called when there is an engine to attach to, at this address, and when it is gone.
    """

    def __init__(
        self,
        engine: EngineConfig | Callable[[], Awaitable[EngineHandle]],
        start_timeout_s: float = 600.0,
        rests: bool = True,
        label: str = "",
    ) -> None:
        self._label = label
        self._engine, self._timeout_s, self._rests = engine, start_timeout_s, rests
        self._streams = StreamTable()
        self._streams.between = self._hear
        self._questions: dict[int, Question] = {}
        self._numbers = count(1)
        self.answer: Callable[[str, str], bytes | None] = lambda question, argument: None
        self.launched: Callable[[str], None] = lambda url: None
        self.lost: Callable[[TailraceError], None] = lambda error: None
        self._tasks: list[asyncio.Task[None]] = []
        self._drained = asyncio.Event()
        self.error: TailraceError | None = None
        self.died = asyncio.Event()  # set whenever the engine is lost; cleared by a restart
        self._pulse: PulseReader | None = None

    async def start(self) -> ModelInfo:
        """Start the process and wait for Ready.

        Raises:
            TailraceError: what the engine said, EngineDeadError if it said nothing or took too long.
        """
        ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._streams.model = None
        if isinstance(self._engine, EngineConfig):
            self._process: EngineHandle = EngineProcess(self._engine, self._label)
        else:
            self._process = await self._engine()
        self.launched(self._process.url)
        self._socket = AsyncFrontSocket(self._process.url)
        self._pulse = PulseReader(self._process.url)
        self._tasks = [asyncio.create_task(self._read(ready)), asyncio.create_task(self._watch())]
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
        """After the engine died: a new one. Streams of before have failed."""
        await self.close()
        self.error = None
        self.died.clear()
        return await self.start()

    @property
    def pid(self) -> int:
        """Of the engine process."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """The engine can serve."""
        return self.error is None and self._streams.model is not None

    @property
    def stall(self) -> Stall | None:
        """The engine can serve, but a turn of its loop takes too long."""
        return self._pulse.stall() if self.ready and self._pulse is not None else None

    @property
    def open_ids(self) -> list[str]:
        """Of the requests that have not ended."""
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
        """The latest."""
        return self._streams.stats

    @property
    def wasted_tokens(self) -> int:
        """Drawn for sequences that had ended here: stop strings that the engine could not find itself."""
        return self._streams.wasted

    @property
    def unacknowledged(self) -> int:
        """Aborts that the engine has not confirmed yet."""
        return len(self._streams.unacknowledged)

    def submit(
        self, prompt: list[int], params: SamplingParams, *, id: str | None = None, priority: int = 0, adapter: str = ""
    ) -> AsyncStream:
        """PeerQuery for a generation."""
        open_stream, message = self._streams.open(prompt, params, id, priority, time.time(), adapter)
        if self.error is not None:
            self._streams.fail_all(EngineDeadError(str(self.error)))
        else:
            self._socket.send(message)
        return AsyncStream(self, open_stream)

    async def ask(self, question: str, argument: str, timeout_s: float = 1.0) -> list[bytes]:
        """What the other front ends of this engine answer within the time; those that have nothing to say are left out."""
        if not self.ready:
            return []
        number = next(self._numbers)
        asked = self._questions[number] = Question()
        self._socket.send(PeerQuery(number, question, argument))
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.complete.wait(), timeout_s)
        finally:
            del self._questions[number]
        return asked.answers

    async def drain(self, timeout_s: float = 30.0) -> bool:
        """Let the engine finish what runs and exit; True if it did within the time."""
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

    def _cancel(self, message: Abort) -> None:
        if self.error is None:
            self._socket.send(message)

    def _abandon(self, message: Abort) -> None:
        """On any thread and at any moment."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the engine
            self._loop.call_soon_threadsafe(self._cancel, message)

    def _hear(self, message: PeerQuery | PeerCount | PeerReply) -> None:
        """Another front end asks, or answers."""
        if isinstance(message, PeerQuery):
            self._socket.send(PeerReply(message.asker, message.number, self.answer(message.question, message.argument)))
        elif (asked := self._questions.get(message.number)) is not None:
            asked.note(message)

    async def _read(self, ready: asyncio.Event) -> None:
        try:
            while True:
                messages = await self._socket.receive()
                begun_s = time.perf_counter()
                woken = self._streams.route(messages)
                if self._streams.model is not None:
                    ready.set()
                if self._streams.drained:
                    self._drained.set()
                for start in range(0, len(woken), SLICE):
                    for open_stream in woken[start : start + SLICE]:
                        open_stream.notify()
                    await asyncio.sleep(0)  # behind those that were woken; others get a turn between
                round_s = time.perf_counter() - begun_s
                if self._rests and round_s > SHORT_S:
                    await asyncio.sleep(min(REST * round_s, MAX_REST_S))
        except Exception as error:  # nothing can be heard any more: that is as good as dead
            self._lose(EngineError(f"the engine can't be understood: {error}"))

    async def _watch(self) -> None:
        """Wait for the process's end without asking again and again."""
        process = self._process
        while not await asyncio.to_thread(process.wait, 0.2):
            pass
        await asyncio.sleep(2 * MAX_REST_S)  # its last words may still wait to be read
        if self._streams.drained:  # as it was told; what came too late ends as well
            self.error = NotReadyError("the engine has been drained")
            self._streams.fail_all(self.error)
        else:
            self._lose(process.error())

    def _lose(self, error: TailraceError) -> None:
        """The engine is gone: every open stream ends, whoever watches is told."""
        self.error = error
        self._streams.fail_all(EngineDeadError(str(error)))
        self.died.set()
        self.lost(error)
