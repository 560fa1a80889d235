"""The in-process client: the engine runs in the caller's thread, a step whenever a stream has no events."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tailrace.params import SamplingParams
from tailrace.wire.messages import NOBODY, Abort, EndThoughts, FromEngine, ModelInfo, Owner, Replay, Stats, Submit
from tailrace.wire.stream import PulledStream
from tailrace.wire.stream_table import StreamTable


class EngineLike(Protocol):
    """The part of engine.Engine that this client needs."""

    info: ModelInfo

    def submit(self, message: Submit, client: bytes = b"") -> None: ...
    def abort(self, message: Abort, client: bytes = b"") -> None: ...
    def end_thoughts(self, message: EndThoughts, client: bytes = b"") -> None: ...
    def step(self) -> dict[bytes, list[FromEngine]]: ...
    def stats(self) -> Stats: ...


class InProcessClient:
    """The client of an engine in this process. wire/sync_client.py describes the interface of the three clients."""

    error = None

    def __init__(self, engine: EngineLike) -> None:
        self._engine, self._streams = engine, StreamTable()
        self._aborts: deque[Abort | EndThoughts] = (
            deque()
        )  # of streams that end while the engine works, or on another thread
        self._thread, self._busy = threading.get_ident(), False
        self.model = engine.info

    def start(self) -> ModelInfo:
        """Return at once: there is nothing to wait for."""
        return self.model

    @property
    def stats(self) -> Stats:
        """The engine's counters."""
        return self._engine.stats()

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        id: str | None = None,
        priority: int = 0,
        replay: Replay | None = None,
        owner: Owner = NOBODY,
    ) -> PulledStream:
        """Ask for a generation, or for the explanation of one."""
        open_stream, message = self._streams.add_stream(prompt, params, id, priority, time.time(), "", replay, owner)
        with self._hold_aborts():
            self._engine.submit(message)
        return PulledStream(open_stream, self._streams, self._cancel_request, self.step)

    def step(self) -> None:
        """Run one step of the engine, and deliver its messages."""
        self._thread = threading.get_ident()
        with self._hold_aborts():
            self._streams.deliver_messages(self._engine.step().get(b"", []))

    @contextmanager
    def _hold_aborts(self) -> Iterator[None]:
        """Pass aborts to the engine before and after the block, not within it.

        A stream may be collected, and so aborted, at any moment and on any thread.
        """
        self._send_aborts()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._send_aborts()

    def _cancel_request(self, message: Abort | EndThoughts) -> None:
        self._aborts.append(message)
        self._send_aborts()

    def _send_aborts(self) -> None:
        while self._aborts and not self._busy and self._thread == threading.get_ident():
            self._busy = True
            try:
                message = self._aborts.popleft()
                if isinstance(message, Abort):
                    self._engine.abort(message)
                else:
                    self._engine.end_thoughts(message)
            finally:
                self._busy = False

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Run until every stream has ended. True if they ended within the time."""
        until = time.monotonic() + timeout_s
        while any(open_stream.open for open_stream in self._streams.open_streams.values()):
            if time.monotonic() > until:
                return False
            self.step()
        return True

    def close(self) -> None:
        """Abort every open stream."""
        for open_stream in list(self._streams.open_streams.values()):
            PulledStream(open_stream, self._streams, self._cancel_request, self.step).abort("close")
        self.step()
