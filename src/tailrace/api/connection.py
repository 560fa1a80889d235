"""One connection: uvicorn's protocol, with limits that apply before the API key is checked. uvicorn has no such limits.

Counted are headers and their bytes, the URL, the bytes that frame a body (request_meter.py), the requests that wait
behind another, and connections (connection_limits.py). Timed are a head, a body and an idle connection. A client that
exceeds a limit is answered with an error in our shape, and the connection ends.

request_reader.py reads the bytes, connection_state.py decides what happens, and this file does it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from tailrace.api import error_handlers
from tailrace.api.connection_limits import CLAIM, ConnectionLimits
from tailrace.api.connection_state import (
    ENDING,
    INCOMPLETE,
    READS,
    Action,
    ConnectionState,
    Happened,
    State,
    Wait,
)
from tailrace.api.request_cycle import CycleTransport, RequestCycle
from tailrace.api.request_head import RefusedError
from tailrace.api.request_reader import PIECE, RequestHead, RequestReader

MAX_PIPELINED = 16  # requests that may wait behind the one that is being answered
MAX_HELD = 1 << 16  # bytes that may wait behind those, before reading stops


class Connection(asyncio.Protocol):
    """One connection, from its first byte to its last.

    Args:
        shared: the limits of all connections. config, server_state, app_state, _loop: what uvicorn gives a protocol.
    """

    transport: asyncio.Transport
    flow: FlowControl
    _newest: RequestCycle  # the request that is being read

    def __init__(
        self,
        shared: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.server_state = server_state
        self.loop = _loop or asyncio.get_event_loop()
        self._config, self._app_state = config, app_state
        self._shared = shared
        self._machine = ConnectionState(shared.waits)
        self._reader = RequestReader(shared.config, self)
        self._serving: RequestCycle | None = None  # the request that is being answered
        self._waiting: deque[RequestCycle] = deque()  # those behind it
        self._held = bytearray()  # what came behind those
        self._timed: tuple[Wait | None, RequestCycle | None] | None = None  # what the timer waits for
        self._timer: asyncio.TimerHandle | None = None
        self._counted = False  # among the front end's connections
        self._lost = False

    # ---- uvicorn and the event loop call these

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client has connected."""
        self.transport, self.flow = transport, FlowControl(transport)
        self.server_state.connections.add(self)  # type: ignore[arg-type]
        self._server, self._client = get_local_addr(transport), get_remote_addr(transport)
        self._address = self._client[0] if self._client else ""
        try:
            self._shared.acquire(self, self._address)
        except RefusedError as refused:  # no byte of the request is read, so that it costs nothing
            return self._handle(Happened.FULL, refused)
        self._counted = True
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection, and pass it on to the requests that are being answered."""
        self.server_state.connections.discard(self)  # type: ignore[arg-type]
        self._machine.handle(Happened.DROP)
        if self._counted:
            self._shared.release(self, self._address)
        self._stop_timer()
        self._lost = True
        self.flow.resume_writing()
        self._abandon()
        self._waiting.clear()
        # requests and the parser hold us: without this only a collection would find us
        self._serving = self._timed = None
        self.__dict__.pop("_newest", None)
        self._reader.close()

    def data_received(self, data: bytes) -> None:
        """More bytes, read in small pieces: a piece in which a request begins or ends is not counted."""
        for begin in range(0, len(data), PIECE):
            self._read(data[begin : begin + PIECE])

    def eof_received(self) -> None:
        """The client has closed its side."""
        self._handle(Happened.EOF)

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """The client has read enough."""
        self.flow.resume_writing()

    def shutdown(self) -> None:
        """The server ends: the request that is being answered is the last."""
        self._handle(Happened.SHUTDOWN)

    def drop(self, refusal: RefusedError) -> None:
        """Another connection needs the room."""
        self._handle(Happened.DROP, refusal)
        if self.transport.get_write_buffer_size():  # the client does not read
            self.transport.abort()

    # ---- bytes in

    def _read(self, data: bytes) -> None:
        if self._machine.state not in READS:
            return
        if self._waiting:  # one at a time is parsed ahead, so that they can be counted
            self._held += data
            if len(self._held) > MAX_HELD:
                self.flow.pause_reading()
            return
        try:
            self._reader.feed(data)
        except RefusedError as refused:
            return self._handle(Happened.BAD, refused)
        if self._reader.in_head:
            self._machine.handle(Happened.PART)
        self._watch()

    def on_head(self, head: RequestHead) -> None:
        """A head is complete: answer, or wait behind the others."""
        if len(self._waiting) >= MAX_PIPELINED:
            raise RefusedError(400, f"more than {MAX_PIPELINED} requests wait behind another")
        scope = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": head.version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "root_path": self._config.root_path,
            "headers": head.headers,
            "state": self._app_state.copy(),
            "method": head.method,
            "path": head.target.path,
            "raw_path": head.target.raw_path,
            "query_string": head.target.query,
            CLAIM: partial(self._shared.claim, self),
        }
        self._newest = cycle = RequestCycle(
            scope,
            CycleTransport(self.transport, self._hang_up),
            self.flow,
            self.server_state.default_headers,
            self._on_answered,
            head,
        )
        self._machine.handle(Happened.HEAD)
        if self._serving is None:
            self._serve(cycle)
        else:
            self._waiting.append(cycle)

    def on_body(self, body: bytes) -> None:
        """Some of the body has come."""
        self._newest.body += body
        self._newest.message_event.set()
        if len(self._newest.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_end(self) -> bool:
        """The request is complete. Return whether another may follow."""
        self._newest.more_body = False
        self._newest.message_event.set()
        self._machine.handle(Happened.END if self._newest.keep_alive else Happened.END_OF_LAST)
        return self._newest.keep_alive

    # ---- answers

    def _serve(self, cycle: RequestCycle) -> None:
        self._serving = cycle
        task = self.loop.create_task(cycle.run_asgi(self._config.loaded_app))  # type: ignore[arg-type]
        task.add_done_callback(self.server_state.tasks.discard)
        self.server_state.tasks.add(task)

    def _on_answered(self) -> None:
        """An answer has gone out: go on with the next request, or wait for one."""
        self.server_state.total_requests += 1
        self._serving = None
        if self._machine.state in ENDING or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not self._waiting:
            self._handle(Happened.ANSWERED)
            if self._reader.in_head:
                self._machine.handle(Happened.PART)
        else:
            self._serve(cycle := self._waiting.popleft())
            if cycle.more_body:
                self._machine.handle(Happened.NEXT_PART)
        if not self._waiting and self._held:
            held, self._held = bytes(self._held), bytearray()
            self.data_received(held)
        self._watch()

    def _hang_up(self) -> None:
        """The present answer is the last."""
        self._handle(Happened.HANG_UP)

    # ---- what the state asks for

    def _handle(self, event: Happened, refusal: RefusedError | None = None) -> None:
        for action in self._machine.handle(event, refusal):
            self._do(action)
        self._watch()

    def _do(self, action: Action) -> None:
        serving, refusal = self._serving, self._machine.refusal
        if action is Action.ABANDON:
            self._abandon()
        elif action is Action.FORGET_PART:
            if self._waiting and self._waiting[-1].more_body:
                self._waiting.pop()
        elif action is Action.FINISH and serving is not None:
            self._waiting.clear()
            serving.keep_alive = False
        elif action is Action.REFUSE and refusal is not None and not (serving and serving.response_started):
            answer = error_handlers.encode_error_response(refusal.status, refusal.message, self._reader.path)
            self.transport.write(answer)
        elif action is Action.SHUT:
            self.flow.resume_reading()
            self.transport.write_eof()
        elif action is Action.CLOSE:
            self.transport.close()

    def _abandon(self) -> None:
        for cycle in (self._serving, *self._waiting):
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()

    def _watch(self) -> None:
        """Set the timer for the current wait. Bytes that arrive do not reset the timer."""
        machine = self._machine
        timed = machine.wait, self._serving
        if self._timed == timed or self._lost:
            return
        self._timed = timed
        self._stop_timer()
        self._shared.note_waiting(self, machine.state in INCOMPLETE)
        if machine.state is State.CLOSED:
            self._await_flush(-1)
        elif machine.wait is not None:
            self._timer = self.loop.call_later(machine.wait.limit_s, self._handle, Happened.TIMEOUT)

    def _await_flush(self, before: int) -> None:
        """Close the connection of a client that does not read its answer."""
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.transport.abort()
        elif left:
            self._timer = self.loop.call_later(self._shared.config.idle_timeout_s, self._await_flush, left)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
