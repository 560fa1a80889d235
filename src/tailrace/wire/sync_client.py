"""The blocking client of an engine process. Iterating any stream reads the socket for all of them; there are no
threads.

Interface of the three clients (asyncio's has async methods):

- `client.start()` → ModelInfo: Wait until the engine can serve. Raises the engine's error if it can't.
- `client.model`, `client.stats`: The served model; the engine's counters, about a second old.
- `client.error`: None, or why the engine is dead.
- `client.submit(prompt, params)`: Return a stream of lists of events. Each sequence ends with one Finished or Failed;
  then the stream ends.
- `stream.abort(cause)`, `stream.close()`: End the request. Nothing more is delivered. This also happens when `with` or
  an iteration ends early, and when the stream is collected.
- `client.drain(timeout_s)`: Let the engine finish the running requests and exit.
- `client.close()`: End the engine and every open stream.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial

import msgspec

from tailrace.config import EngineConfig
from tailrace.errors import EngineDeadError, EngineError, TailraceError, describe_error
from tailrace.params import SamplingParams
from tailrace.wire.engine_process import EngineProcess
from tailrace.wire.messages import NOBODY, VERSION, Drain, Hello, ModelInfo, Owner, Replay, Stats, ToEngine
from tailrace.wire.sockets import FrontSocket
from tailrace.wire.stream import PulledStream
from tailrace.wire.stream_table import StreamTable

POLL_MS = 100  # how often a waiting reader checks whether the engine is dead


class SyncClient:
    """A client that owns one engine process."""

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
        scheduler = msgspec.structs.replace(self._config.scheduler, sleep_after=0.0)  # nothing here would wake it
        self._process = EngineProcess(msgspec.structs.replace(self._config, scheduler=scheduler))
        self._socket = FrontSocket(self._process.address.url)
        self._send_message(Hello())
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
        """The model that the engine serves."""
        assert self._streams.model is not None, "not started"
        return self._streams.model

    @property
    def stats(self) -> Stats:
        """The latest counters of the engine. Reading them receives the messages that have arrived."""
        self.pump(0)
        return self._streams.stats

    def pump(self, timeout_ms: int) -> None:
        """Deliver the messages that arrive within the time, and notice a dead engine."""
        if self.error is not None:
            return
        self._thread = threading.get_ident()
        self._flush_outgoing()
        try:
            messages = self._socket.receive(timeout_ms)
            self._streams.deliver_messages(messages)
        except Exception as error:  # no message can be read any more: the engine is as good as dead
            self.error = EngineError(f"the engine can't be understood: {describe_error(error)}")
            self._streams.fail_all(EngineDeadError(str(self.error)))
            return
        if not messages and not self._process.alive and not self._streams.drained:
            self.error = self._process.error()
            self._streams.fail_all(EngineDeadError(str(self.error)))

    def _send_message(self, message: ToEngine) -> None:
        """Send to the engine at once if this is the socket's thread and it is not sending just now; otherwise at the
        next pump.

        A stream may be collected, and so aborted, at any moment and on any thread.
        """
        self._outgoing.append(message)
        self._flush_outgoing()

    def _flush_outgoing(self) -> None:
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
        owner: Owner = NOBODY,
    ) -> PulledStream:
        """Ask for a generation, or for the explanation of one. (More than six parameters: those of a Submit.)"""
        open_stream, message = self._streams.add_stream(
            prompt, params, id, priority, time.time(), adapter, replay, owner
        )
        if self.error is not None:
            self._streams.fail_all(EngineDeadError(str(self.error)))
        else:
            self._send_message(message)
        return PulledStream(open_stream, self._streams, self._send_message, partial(self.pump, POLL_MS))

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Let the engine finish the running requests and exit. True if it did within the time."""
        until = time.monotonic() + timeout_s
        self._send_message(Drain())
        while not self._streams.drained and self.error is None and time.monotonic() < until:
            self.pump(POLL_MS)
        return self._streams.drained is not None

    def close(self) -> None:
        """End the engine and every open stream. Idempotent."""
        self.error = self.error or EngineDeadError("the client was closed")
        self._streams.fail_all(EngineDeadError(str(self.error)))
        if hasattr(self, "_socket"):
            self._socket.close()
            self._process.stop()
