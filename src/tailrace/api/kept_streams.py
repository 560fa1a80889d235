"""Streams that outlive their connections: the events of an answer, kept for readers that come back (decision 0107).

A task reads the chunks of a resumable request and keeps each event, whoever reads. So every reader gets the same bytes,
and a reader that leaves ends nothing. The events are in a store like that of the responses, with a share per user.

A request without a reader for `resume_s` is cut, and its events are kept for `resume_s` after its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Iterator
from typing import Protocol

import msgspec

from tailrace.api import error_handlers
from tailrace.api.disconnect import cancel_all
from tailrace.api.response_store import MAX_RESPONSES, ResponseShare, ResponseStore
from tailrace.api.stored import Stored
from tailrace.api.streaming import PLAIN, EventFormat
from tailrace.api.user_limits import Admission
from tailrace.errors import ParameterError, RequestNotFoundError, TailraceError, format_json

RUNNING = Stored(b"", b"", 0, [], b"", created=math.inf)  # the state of a stream that goes on
MAX_PART = 256  # events that are read at once


class Cuttable(Protocol):
    """A request that is being generated."""

    id: str

    def cut(self, cause: str) -> None:
        """End the generation with the output so far."""
        ...


class StreamPart(msgspec.Struct):
    """Events of a stream. total: how many there are so far. ended: no more will come."""

    events: list[bytes]
    total: int
    ended: bool

    def is_end(self, number: int) -> bool:
        """Return whether so many events are all of the stream."""
        return self.ended and number >= self.total


class RunningStream:
    """A request whose events are kept while it runs.

    Args:
        admission: what it has of its user's limits; it is finished with the request.

    Attributes:
        begun: set when there is an event, or the request has failed without one, or its answer has begun. A later
            error is an event. failure: the error of a request that failed without an event.
    """

    def __init__(self, kept: KeptStreams, share: ResponseShare, request: Cuttable, admission: Admission | None) -> None:
        self.begun = asyncio.Event()
        self.failure: Exception | None = None
        self._kept, self._share, self._request, self.id = kept, share, request, request.id
        self._loop = asyncio.get_running_loop()
        self._admission = admission
        if admission is not None:
            admission.outlives = True
        self._readers, self._left_s = 0, self._loop.time()
        self._timer = self._loop.call_later(kept.resume_s, self._cut_unread)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Count a reader."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            self.note_reader()

    def note_reader(self) -> None:
        """Note that somebody reads now."""
        self._left_s = self._loop.time()

    def _cut_unread(self) -> None:
        """End the request if nobody has read for too long."""
        if self._readers:
            self.note_reader()
        left_s = self._left_s + self._kept.resume_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._cut_unread)
        else:
            self._request.cut("disconnect")

    async def keep_events(self, chunks: AsyncGenerator[msgspec.Struct, None], form: EventFormat) -> None:
        """Keep the events of the chunks until their end."""
        try:
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    self._keep_event(form.frame(chunk))
                    if self.id not in self._share:  # there is no room for its events
                        return
        except Exception as error:
            if not self.begun.is_set():
                self.failure = error.with_traceback(None) if isinstance(error, TailraceError) else error
                self._share.discard(self.id)
            else:
                self._keep_event(form.frame(error_handlers.of_any(error)), ended=True)
        else:
            self._keep_event(form.done, ended=True)
        finally:
            self._timer.cancel()
            if self._admission is not None:
                self._admission.finish()
            self.begun.set()

    def _keep_event(self, frame: bytes, ended: bool = False) -> None:
        entry = self._share.find(self.id)
        if entry is None:
            return
        number = len(entry.frames or ()) + 1
        if frame:  # a format may have none for the end
            self._share.record(self.id, b"id: %d\n%b" % (number, frame))
        if ended:
            self._kept.end_entry(self._share, self.id)
        self.begun.set()


class KeptStreams:
    """The resumable requests of one front end, and the events of those that have ended.

    Args:
        max_bytes: of the events of all users; beyond it the user with the most loses its least recently used stream.
        resume_s: see above.
    """

    def __init__(self, max_bytes: int, resume_s: float) -> None:
        self.resume_s = resume_s
        self.store = ResponseStore(MAX_RESPONSES, max_bytes, resume_s)
        self._running: dict[tuple[str, str], tuple[RunningStream, asyncio.Task[None]]] = {}

    def start(
        self,
        user: str,
        request: Cuttable,
        chunks: AsyncGenerator[msgspec.Struct, None],
        admission: Admission | None = None,
        form: EventFormat = PLAIN,
    ) -> RunningStream:
        """Generate a request of the user, and keep its events.

        Raises:
            ParameterError: the user runs a resumable request with the same id.
        """
        name = (user, request.id)
        if name in self._running:
            raise ParameterError("request_id: a resumable request of this name is running", "request_id")
        share = self.store.share_of(user)
        share.put_entry(request.id, RUNNING._replace(frames=[]))
        stream = RunningStream(self, share, request, admission)
        task = asyncio.create_task(stream.keep_events(chunks, form))
        self._running[name] = stream, task
        task.add_done_callback(lambda _: self._running.pop(name))
        return stream

    def end_entry(self, share: ResponseShare, id: str) -> None:
        """Note that no more events will come. The stream's age begins now."""
        entry = share.find(id)
        if entry is not None:
            share.put_entry(id, entry._replace(created=self.store.clock()))

    def read_part(self, user: str, id: str, number: int) -> StreamPart | None:
        """Return events of a stream behind event `number`; None if the stream is not here (any more)."""
        entry = self.store.share_of(user).find(id)
        if entry is None or entry.frames is None:
            return None
        if running := self._running.get((user, id)):
            running[0].note_reader()
        events = entry.frames[number : number + MAX_PART]
        return StreamPart(events, len(entry.frames), entry.created != math.inf)

    @contextlib.contextmanager
    def reading(self, user: str, id: str) -> Iterator[None]:
        """Count a reader of this front end while it reads."""
        running = self._running.get((user, id))
        with contextlib.nullcontext() if running is None else running[0].reading():
            yield

    async def close(self) -> None:
        """End what still runs."""
        await cancel_all(*(task for _, task in self._running.values()))


def make_lost_error(id: str) -> RequestNotFoundError:
    """Return the error for a stream whose events are not kept."""
    return RequestNotFoundError(f"no events of {format_json(id, 200)} are kept (any more)", "id")
