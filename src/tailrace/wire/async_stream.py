"""The stream of the asyncio client. It wakes once per frame, or at its interval, however many events have arrived."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

from tailrace.wire.interval import Interval
from tailrace.wire.messages import Abort, EndThoughts, SequenceEvent
from tailrace.wire.stream import Stream
from tailrace.wire.stream_table import OpenStream, StreamTable


class Waiter:
    """Wakes the reader of a stream, at the stream's interval. An object of its own, so that the client does not keep
    the stream alive."""

    def __init__(self) -> None:
        self.interval = Interval()
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        """Wait until `wake_reader` is called."""
        self._future = asyncio.get_running_loop().create_future()
        await self._future

    def on_events(self, open_stream: OpenStream) -> None:
        """Wake the reader if its interval is over: events have arrived, or the stream has ended."""
        if self.interval.is_due(open_stream):
            self.wake_reader()
        elif self.interval.seconds and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.interval.left_s, self._on_timer)

    def wake_reader(self) -> None:
        """Let the reader look again."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake_reader()


class AsyncStream(Stream):
    """A stream of the asyncio client. Iterating yields lists of events: all since the last list. `next` returns one
    list."""

    def __init__(
        self,
        open_stream: OpenStream,
        streams: StreamTable,
        cancel: Callable[[Abort | EndThoughts], None],
        abandon: Callable[[Abort], None],
    ) -> None:
        super().__init__(open_stream, streams, cancel, abandon)
        self._waiter = Waiter()
        open_stream.wake = self._waiter.on_events

    async def next(self) -> list[SequenceEvent]:
        """Return all events since the last call. Wait for one event, and for as many as the interval says.

        An empty list is the end.
        """
        open_stream, interval = self._open_stream, self._waiter.interval
        while not open_stream.events or not interval.is_due(open_stream):
            if not open_stream.open:
                return []
            await self._waiter.wait()
        interval.record_delivery(open_stream)
        return open_stream.take()

    async def __aiter__(self) -> AsyncIterator[list[SequenceEvent]]:
        try:
            while events := await self.next():
                yield events
        finally:  # also when the task is cancelled or the iterator closed
            self.abort("iteration ended")

    def set_interval(self, tokens: int, seconds: float) -> None:
        """Deliver several tokens at once: see `Interval`."""
        self._waiter.interval = Interval(tokens, seconds)

    def set_limit(self, max_bytes: int, full: Callable[[], None]) -> None:
        """Call `full` whenever more than about `max_bytes` have arrived unread."""
        self._full = (
            full  # `full` may refer to the stream; if the open_stream kept it, the stream would never be collected
        )
        stream = weakref.ref(self)

        def on_full() -> None:
            if (held := stream()) is not None:
                held._full()

        self._open_stream.max_bytes, self._open_stream.full = max_bytes, on_full

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.abort()
