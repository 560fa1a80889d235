"""The blocking client of an engine process. Iterating any stream pumps the socket for all of them; no threads.

Interface of the three clients (asyncio's has async methods):

    client.start() → ModelInfo          waits until the engine can serve; raises the engine's error if it can't
    client.model, client.stats          what it serves; its counters, about a second old
    client.error                        None, or why the engine is dead
    client.submit(prompt, params) → stream of lists of events; one Finished or Failed per sequence, then it ends
    stream.abort(cause), stream.close() nothing more is delivered; also when `with` or an iteration ends early, or the
    stream is collected client.drain(timeout_s), client.close()
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial

from tailrace.config import EngineConfig
from tailrace.errors import EngineDeadError, EngineError, TailraceError
from tailrace.params import SamplingParams
from tailrace.wire.engine_process import EngineProcess
from tailrace.wire.messages import VERSION, Drain, Hello, ModelInfo, Replay, Stats, ToEngine
from tailrace.wire.sockets import FrontSocket
from tailrace.wire.stream import PulledStream
from tailrace.wire.stream_table import StreamTable

POLL_MS = 100  # after so long a waiting reader notices that the engine is dead


class SyncClient:
    """Owns one engine process."""

    def __init__(self, config: EngineConfig, start_timeout_s: float = 600.0) -> None:
        self._config, self._timeout_s = config, start_timeout_s
        self._streams = StreamTable()
        self._outgoing: deque[ToEngine] = deque()
        self._thread, self._busy = threading.get_ident(), False
        self.error: TailraceError | None = None

    def start(self) -> ModelInfo:
        """Start the process and wait for Ready.

        Raises:
            TailraceError: the error that the engine reported; EngineDeadError if it reported none or took too long.
        """
        self._process = EngineProcess(self._config)
        self._socket = FrontSocket(self._process.address.url)
        self._send(Hello())
        until = time.monotonic() + self._timeout_s
        while self._streams.model is None and self.error is None:
            self.pump(POLL_MS)
            if time.monotonic() > until:
                self.error = EngineDeadError(f"the engine was not ready within {self._timeout_s:g} s")
        if self.error is None and self._streams.version != VERSION:
            self.error = EngineError(f"the engine speaks version {self._streams.version}, not {VERSION}")
        if self.error is not None:
            self.close()
            raise self.error
        return self.model

    @property
    def model(self) -> ModelInfo:
        """What the engine serves."""
        assert self._streams.model is not None, "not started"
        return self._streams.model

    @property
    def stats(self) -> Stats:
        """The latest counters of the engine; reads what has arrived."""
        self.pump(0)
        return self._streams.stats

    def pump(self, timeout_ms: int) -> None:
        """Deliver what arrives within the time, and notice a dead engine."""
        if self.error is not None:
            return
        self._thread = threading.get_ident()
        self._flush()
        messages = self._socket.receive(timeout_ms)
        self._streams.deliver(messages)
        if not messages and not self._process.alive and not self._streams.drained:
            self.error = self._process.error()
            self._streams.fail_all(EngineDeadError(str(self.error)))

    def _send(self, message: ToEngine) -> None:
        """To the engine, at once if this is the socket's thread and it is not sending just now, else by the next pump:
        a stream may be collected, and so aborted, at any moment and on any thread."""
        self._outgoing.append(message)
        self._flush()

    def _flush(self) -> None:
        while self._outgoing and not self._busy and self._thread == threading.get_ident() and self.error is None:
            self._busy = True
            try:
                self._socket.send(self._outgoing.popleft())
            finally:
                self._busy = False

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        id: str | None = None,
        priority: int = 0,
        adapter: str = "",
        replay: Replay | None = None,
    ) -> PulledStream:
        """Ask for a generation, or for the explanation of one. (More than six parameters: those of a Submit.)"""
        open_stream, message = self._streams.open(prompt, params, id, priority, time.time(), adapter, replay)
        if self.error is not None:
            self._streams.fail_all(EngineDeadError(str(self.error)))
        else:
            self._send(message)
        return PulledStream(open_stream, self._streams, self._send, partial(self.pump, POLL_MS))

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Let the engine finish what runs and exit; True if it did within the time."""
        until = time.monotonic() + timeout_s
        self._send(Drain())
        while not self._streams.drained and self.error is None and time.monotonic() < until:
            self.pump(POLL_MS)
        return self._streams.drained

    def close(self) -> None:
        """End the engine and every open stream. Idempotent."""
        self.error = self.error or EngineDeadError("the client was closed")
        self._streams.fail_all(EngineDeadError(str(self.error)))
        if hasattr(self, "_socket"):
            self._socket.close()
            self._process.stop()
