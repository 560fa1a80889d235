"""The common part of the three clients' streams. A stream without a reader is aborted."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Self

from tailrace.wire.messages import Abort, EndThoughts, SequenceEvent
from tailrace.wire.stream_table import OpenStream, StreamTable


class Stream:
    """One request's events. It is aborted when it is closed, when `with` or an iteration ends early, and when it is
    collected.

    Args:
        cancel: sends a message to the engine that ends the request, or a part of it.
        abandon: the same for a stream that is collected, which may happen on any thread and at any moment. Left out if
            `cancel` may be called in this way too.

    Attributes:
        id, epoch: the request's name.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        streams: StreamTable,
        cancel: Callable[[Abort | EndThoughts], None],
        abandon: Callable[[Abort], None] | None = None,
    ) -> None:
        self._open_stream, self._streams, self._cancel = open_stream, streams, cancel
        self.id, self.epoch = open_stream.id, open_stream.epoch
        collected = weakref.finalize(self, _abort_stream, open_stream, streams, abandon or cancel, "collected", False)
        collected.atexit = False  # the engine's process ends with ours

    def abort(self, cause: str = "client", keep: bool = False) -> None:
        """End the request. Nothing more is delivered; with `keep`, events that have arrived still are. Idempotent."""
        _abort_stream(self._open_stream, self._streams, self._cancel, cause, keep)

    def abort_sequence(self, index: int, cause: str = "stop string") -> bool:
        """End one sequence; the others continue. Idempotent. Return False if the sequence had ended already."""
        open_ = self._streams.close_sequence(self._open_stream, index)
        if open_:
            self._cancel(Abort(self.id, self.epoch, cause, index))
        return open_

    def end_thoughts(self) -> None:
        """Close the thoughts that are open. The sequences continue with their answers."""
        if self._open_stream.open:
            self._cancel(EndThoughts(self.id, self.epoch))

    def close(self) -> None:
        """Abort the request, unless it has ended. Idempotent."""
        self.abort("closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.abort()


class PulledStream(Stream):
    """A stream whose reader does its client's work while it waits. Iterating yields lists of events: all since the last
    list.

    Args:
        pull: does some of the work: receives for a while, or runs a step.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        streams: StreamTable,
        cancel: Callable[[Abort | EndThoughts], None],
        pull: Callable[[], object],
    ) -> None:
        super().__init__(open_stream, streams, cancel)
        self._pull = pull

    def __iter__(self) -> Iterator[list[SequenceEvent]]:
        try:
            while self._open_stream.open or self._open_stream.events:
                if self._open_stream.events:
                    yield self._open_stream.take()
                else:
                    self._pull()
        finally:  # also when the iterator is closed, or collected
            self.abort("iteration ended")


def _abort_stream(
    open_stream: OpenStream, streams: StreamTable, cancel: Callable[[Abort], None], cause: str, keep: bool
) -> None:
    """Abort a stream. This is no method: a reference to the stream would keep it from being collected."""
    if streams.close(open_stream, keep):
        cancel(Abort(open_stream.id, open_stream.epoch, cause))
