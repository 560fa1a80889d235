"""The asyncio client of an engine process. wire/sync_client.py describes the interface. wire/engine_link.py reads the
socket and watches the process. If the engine sleeps, `wake` gives the client another one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from tailrace.config import EngineConfig, SchedulerConfig
from tailrace.errors import EngineDeadError, EngineError, NotReadyError, TailraceError, describe_error
from tailrace.params import SamplingParams
from tailrace.wire.async_stream import AsyncStream
from tailrace.wire.engine_link import EngineLink, find_engine
from tailrace.wire.engine_process import EngineHandle
from tailrace.wire.messages import (
    NOBODY,
    VERSION,
    Abort,
    Drain,
    EndThoughts,
    ModelInfo,
    Owner,
    Replay,
    Sleep,
    Stats,
    ToEngine,
)
from tailrace.wire.peer_queries import PeerQueries
from tailrace.wire.pulse import Stall
from tailrace.wire.sleep_state import NO_SLEEP, SleepState
from tailrace.wire.stream_table import StreamTable


class AsyncClient:
    """The client of one engine; `restart` gives it a new one.

    Args:
        engine: the settings of an engine process to start. Or a function that waits for an engine of another process.
        label: the engine's name in log lines.
        pauses: let other requests run on the event loop while many streams are served. False delivers everything at
            once.
        scheduler: the engine's settings of sleep, and of requests that wait.

    Attributes:
        on_launched, on_lost: called with the address of an engine to attach to, and with the reason when the engine is
            gone. on_asleep: called with its model when it sleeps, and again with the reason if it can't be loaded.
        sleep: see SleepState.
    """

    def __init__(
        self,
        engine: EngineConfig | Callable[[], Awaitable[EngineHandle]],
        start_timeout_s: float = 600.0,
        pauses: bool = True,
        label: str = "",
        scheduler: SchedulerConfig = NO_SLEEP,
    ) -> None:
        self._engine, self._timeout_s, self._pauses, self._label = engine, start_timeout_s, pauses, label
        self._streams = StreamTable()
        self.queries = PeerQueries(self.send)
        self._streams.on_peer_message = self.queries.on_message
        self.sleep = SleepState(scheduler)
        self.on_launched: Callable[[str], None] = lambda url: None
        self.on_lost: Callable[[TailraceError], None] = lambda error: None
        self.on_asleep: Callable[[ModelInfo, TailraceError | None], None] = lambda model, error: None
        self._link: EngineLink | None = None
        self.error: TailraceError | None = None
        self.died = asyncio.Event()  # set whenever the engine is lost or sleeps; cleared before another one starts

    async def start(self) -> ModelInfo:
        """Start the process and wait for Ready.

        Raises:
            TailraceError: the error that the engine reported; EngineDeadError if it reported none or took too long.
        """
        try:
            return await self._launch()
        except TailraceError as error:
            self.error = error
            await self.close()
            raise

    async def restart(self) -> ModelInfo:
        """Start a new engine after the old one died. Earlier streams have failed."""
        await self.close()
        self.sleep.changes = []
        return await self.start()

    async def wake(self) -> ModelInfo:
        """Wait until a request wants the engine that sleeps, load it, and send it the requests that wait.

        Raises:
            TailraceError: the engine can't be loaded. The requests that waited have failed, and it sleeps on.
        """
        await self._end_engine()
        try:
            model = await self._launch()
        except Exception as caught:
            error = caught if isinstance(caught, TailraceError) else EngineDeadError(describe_error(caught))
            await self._fail_load(error)
            raise error from None
        for stream in self._streams.waiting:
            self.send(stream.message)
        return model

    async def _launch(self) -> ModelInfo:
        """Start an engine, or find the one of the other process, and wait for Ready."""
        self._loop = asyncio.get_running_loop()
        self.error = self._streams.drained = self._streams.model = None
        self.died.clear()
        process = self._process = await find_engine(self._engine, self._label, self.sleep)
        if process.asleep is not None and process.wait(0):  # this front end has come while it sleeps
            self._fall_asleep(process.asleep)
            return self.model
        self.sleep.begin_load()
        try:
            self.on_launched(process.url)
            self._link = EngineLink(process, self._streams, self._pauses, self._on_engine_end)
        except BaseException:
            await asyncio.to_thread(process.stop)
            raise
        await self._link.wait_until_ready(self._timeout_s)
        if self.error is None and (self._streams.model is None or self._link.gone.is_set()):
            self.error = EngineDeadError(f"the engine was not ready within {self._timeout_s:g} s")
        if self.error is None and self._streams.version != VERSION:
            self.error = EngineError(f"the engine speaks version {self._streams.version}, not {VERSION}")
        if self.error is not None:
            raise self.error
        self.sleep.end_load()
        return self.model

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    @property
    def asleep(self) -> bool:
        """True while the engine sleeps, and until another one is ready."""
        return self.sleep.model is not None

    @property
    def ready(self) -> bool:
        """True if the engine can serve."""
        return self.error is None and self._streams.model is not None and not self.asleep

    @property
    def stall(self) -> Stall | None:
        """The current stall, if the engine can serve but a turn of its loop takes too long; else None."""
        return self._link.pulse.stall() if self.ready and self._link is not None else None

    @property
    def loading(self) -> str:
        """The part of its start that the engine is in (wire/pulse.py); "" once it can serve, or if it is unknown."""
        return "" if self.ready or self._link is None else self._link.pulse.loading()

    @property
    def open_ids(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return [id for id, _ in self._streams.open_streams]

    @property
    def model(self) -> ModelInfo:
        """What the engine serves, or serves again when it does not sleep any more.

        Raises:
            EngineDeadError: it is dead, or not up yet.
        """
        model = self.sleep.model or self._streams.model
        if model is None:
            raise self.error or EngineDeadError("the engine is still starting")
        return model

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
        """Ask for a generation, or for the explanation of one. (More than six parameters: those of a Submit.)

        Raises:
            OverloadedError: the engine sleeps, and too many requests wait for it.
        """
        if self.asleep:
            self.sleep.check_place(owner, self._streams.waiting)
        open_stream, message = self._streams.add_stream(
            prompt, params, id, priority, time.time(), adapter, replay, owner, reports_progress
        )
        if self.asleep:
            self.sleep.want()
        elif self.error is not None:
            self._streams.fail_all(EngineDeadError(str(self.error)))
        else:
            self.send(message)
        return AsyncStream(open_stream, self._streams, self._cancel_request, self._cancel_threadsafe)

    def send(self, message: ToEngine) -> None:
        """Send the engine a message."""
        assert self._link is not None, "not started"
        self._link.send(message)

    async def ask(self, question: str, argument: str, timeout_s: float = 1.0) -> list[bytes]:
        """Return the answers that the other front ends of this engine have, within the time."""
        return await self.queries.ask(question, argument, timeout_s) if self.ready else []

    def ask_to_sleep(self, abort: bool) -> None:
        """Ask an engine that is ready to end itself if nothing runs. abort: end what runs."""
        self.send(Sleep(abort))

    async def drain(self, timeout_s: float = 30.0) -> bool:
        """Let the engine finish the running requests and exit. True if it did within the time."""
        if self.error is not None:
            return False
        if self._link is not None:
            self.send(Drain())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._link.drained.wait(), timeout_s)
        return self._streams.drained is not None

    async def close(self) -> None:
        """End the engine and every open stream. Idempotent."""
        self.error = self.error or EngineDeadError("the client was closed")
        self.sleep.end_load(self.error)
        self.sleep.model = None
        self._streams.fail_all(EngineDeadError(str(self.error)))
        await self._end_engine()

    async def _end_engine(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    async def _fail_load(self, error: TailraceError) -> None:
        await self._end_engine()
        refusal = NotReadyError(f"the model could not be loaded: {error}; the next request tries again")
        self.sleep.end_load(refusal)
        self._streams.fail_all(refusal)
        if self.sleep.model is not None:
            self.on_asleep(self.sleep.model, error)

    def _cancel_request(self, message: Abort | EndThoughts) -> None:
        if self.asleep:  # the next engine will not hear of the request
            self._streams.unacknowledged.discard((message.id, message.epoch))
        elif self.error is None:
            self.send(message)

    def _cancel_threadsafe(self, message: Abort) -> None:
        """Do the work of `_cancel_request`, on any thread and at any moment."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the engine
            self._loop.call_soon_threadsafe(self._cancel_request, message)

    def _on_engine_end(self, error: TailraceError) -> None:
        """End every open stream with the error, and call `on_lost`. If the engine sleeps, its streams stay open. While
        an engine is loaded that has slept, `wake` does the rest."""
        drained, self.error = self._streams.drained, error
        if drained is not None and drained.asleep:
            self.sleep.changes = drained.changes
            self._fall_asleep(self.model)
        elif drained is not None:  # as asked; requests that came too late end as well
            self.error = NotReadyError("the engine has been drained")
            self._streams.fail_all(self.error)
        elif not self.asleep:
            self._streams.fail_all(EngineDeadError(str(error)))
            self.died.set()
            self.on_lost(error)
            if self._process.asleep is not None:
                self._fall_asleep(self._process.asleep)

    def _fall_asleep(self, model: ModelInfo) -> None:
        """Note that the engine sleeps. Open streams are those of requests that it has not read."""
        self.sleep.model, self.error = model, None
        self._streams.forget_engine()
        self.died.set()
        self.on_asleep(model, None)
        if self._streams.waiting:
            self.sleep.want()
