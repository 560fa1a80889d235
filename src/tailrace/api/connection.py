"""One connection, with limits that hold before anybody looks at a key. uvicorn's own protocol has none.

Counted are headers and their bytes, the URL, the bytes that frame a body (request_meter.py), the requests that wait
behind another, and connections (connection_limits.py). Timed are a head, a body and an idle connection. A client that
exceeds a limit is answered with an error in our shape, and the connection ends.

A client that closes its side after its request still gets its answer. Only writing shows whether such a client is still
there. So from then on the answer is sent ahead byte by byte until it really comes: first "HTTP/1.1 ", then zeros before
the size of the next chunk. A client that is gone answers the first such byte with a reset, and the next byte finds it
(decision 0027).

(More than 300 lines: one protocol, whose callbacks, answers and timers all change the state of the one connection.)
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tailrace.api import error_handlers
from tailrace.api.connection_limits import ConnectionLimits
from tailrace.api.request_cycle import RequestCycle
from tailrace.api.request_head import RefusedError, framing_of, reason_of, target_of
from tailrace.api.request_meter import RequestMeter

MAX_PIPELINED = 16  # requests that may wait behind the one that is being answered
MAX_HELD = 1 << 16  # bytes that may wait behind those, before reading stops
PIECE = 1 << 12  # bytes that are parsed at once
LINGER_S = 2.0  # that a refused client has to read the error, while what it still sends is thrown away
PROBES_S = (0.01, 0.04, 0.2, 1.0, 4.0, 15.0, 40.0)  # between the bytes that find out whether a client is still there


class Connection(HttpToolsProtocol):
    """One connection, from its first byte to its last."""

    def __init__(self, shared: ConnectionLimits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self.serving: RequestCycle | None = (
            None  # the request that is being answered; self.pipeline has those behind it
        )
        self._shared, self._limits = shared, shared.config
        self._meter = RequestMeter(shared.config)
        self._watched: tuple[str, RequestCycle | None] | None = None  # what the timer waits for
        self._timer: asyncio.TimerHandle | None = None
        self._prober: asyncio.TimerHandle | None = None
        self._ignores_upgrade = False  # the body belongs to a request whose upgrade is ignored
        self._held = bytearray()  # what came behind a full pipeline
        self._deaf = False  # what still comes is thrown away
        self._counted = False  # among the front end's connections
        self._closing = self._lost = False
        self._eof = False  # the client has closed its side
        self._last_error: RefusedError | None = None  # to be sent behind the present answer

    # ---- the connection's life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client has connected."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        try:
            self._shared.acquire(self._address)
        except RefusedError as refused:  # nothing of it is read, so that it costs nothing
            self.transport.write(error_handlers.raw(refused.status, refused.message))
            self.drop()
        else:
            self._counted = True
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; requests that are being answered hear of it."""
        self._lost = True
        if self._counted:
            self._shared.release(self._address)
        self._shared.waiting.pop(self, None)
        self._stop_timers()
        super().connection_lost(exc)
        for exchange in (self.serving, *(cycle for cycle, _ in self.pipeline)):
            if exchange is not None:
                exchange.disconnected = True
                exchange.message_event.set()
        self.pipeline.clear()
        # exchanges hold us: without this only a collection would find us
        self.serving = self._watched = None
        self.cycle = None  # type: ignore[assignment]

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its side. True where it still gets an answer."""
        self._eof, self._deaf = True, True
        serving = self.serving
        if self._closing or (serving is None and not self._meter.head_bytes):
            return False
        if serving is None or serving.more_body:
            self._refuse(RefusedError(400, "the connection ended before the request was complete"))
            return True
        self._drop_unfinished()
        self._probe(0)
        return True

    def shutdown(self) -> None:
        """The server ends: the request that is being answered is the last."""
        self.pipeline.clear()
        self._deaf = self._deaf or self.serving is None or not self.serving.more_body
        if self.serving is None:
            self.drop()
        else:
            self.serving.keep_alive = False

    def drop(self) -> None:
        """Close without an answer. A client that does not even read what is on its way is cut off."""
        self._closing, self._deaf = True, True
        self._stop_timers()
        self._shared.waiting.pop(self, None)
        self.transport.close()
        if not self._lost:  # else a timer would keep this object alive
            self._await_flush(-1)

    def _await_flush(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.transport.abort()
        elif left:
            self._timer = self.loop.call_later(self._limits.idle_timeout_s, self._await_flush, left)

    # ---- bytes in

    def data_received(self, data: bytes) -> None:
        """More bytes, fed to the parser in small pieces: a piece in which a request begins or ends is not counted."""
        for begin in range(0, len(data), PIECE):
            self._received(data[begin : begin + PIECE])

    def _received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self.pipeline:  # one at a time is parsed ahead, so that they can be counted
            self._held += data
            if len(self._held) > MAX_HELD:
                self.flow.pause_reading()
            return
        self._feed(data)
        self._watch()

    def _feed(self, data: bytes) -> None:
        self._meter.begin_piece(data)
        try:
            self._parse(data)
            self._meter.end_piece(len(data))
        except RefusedError as refused:
            self._refuse(refused)
        except httptools.HttpParserError as error:
            if not self._deaf:  # else it is behind the last request
                cause = error.__context__  # what a callback of ours has raised
                self._refuse(cause if isinstance(cause, RefusedError) else reason_of(error, self._meter.first))

    def _parse(self, data: bytes) -> None:
        """Feed the parser. An upgrade that a request asks for is ignored; its body, if it has one, is read by another
        parser."""
        try:
            return self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        framing = framing_of(self.headers)
        if not self._ignores_upgrade or framing is None:
            return
        self._ignores_upgrade = False
        self.parser = httptools.HttpRequestParser(BodyCallbacks(self))
        self.parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n" + b": ".join(framing) + b"\r\n\r\n")
        self.parser.feed_data(rest)

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        """A request line comes."""
        if self._deaf:
            raise ValueError("the last request has been read")
        super().on_message_begin()
        self._meter.begin_message()

    def on_url(self, url: bytes) -> None:
        """Some of the URL."""
        super().on_url(url)
        self._meter.check_url(len(self.url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers are left out: they come after the request has been looked at."""
        if self._meter.in_head:
            super().on_header(name, value)
            self._meter.add_header(len(name) + len(value) + 4, len(self.headers))

    def on_headers_complete(self) -> None:
        """The head is complete: answer, or wait behind the others."""
        parser, method = self.parser, self.parser.get_method().decode("ascii")
        version = parser.get_http_version()
        target = target_of(method, version, self.url, self.headers)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise RefusedError(400, f"more than {MAX_PIPELINED} requests wait behind another")
        self.scope |= {  # type: ignore[operator]
            "method": method,
            "http_version": version,
            "path": target.path,
            "raw_path": target.raw_path,
            "query_string": target.query,
        }
        self._meter.end_head()
        upgrading = parser.should_upgrade()
        self._ignores_upgrade = upgrading and framing_of(self.headers) is not None
        keep_alive = version == "1.1" and not upgrading and parser.should_keep_alive()
        self.cycle = exchange = RequestCycle(self, self.expect_100_continue and version == "1.1", keep_alive)
        if self.serving is None:
            self._start_asgi_task(exchange, self.app)
        else:
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._meter.add_chunk()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._meter.add_body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._ignores_upgrade:
            return
        self._meter.end_message()
        self._deaf = not self.cycle.keep_alive
        super().on_message_complete()

    # ---- answers

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.serving = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """An answer has gone out: go on with the next request, or wait for one."""
        self.server_state.total_requests += 1
        self.serving = None
        if self._closing or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if not self.pipeline and self._held:
            held, self._held = bytes(self._held), bytearray()
            self.data_received(held)
        if self.serving is None and self._last_error is not None:
            self._refuse(self._last_error)
        elif self.serving is None and self._eof:
            self.drop()
        else:
            self._watch()

    def hang_up(self) -> None:
        """The present answer is the last. Where the request is still coming, the client gets time to read the answer
        first."""
        unfinished = self.serving is not None and self.serving.more_body
        if unfinished and not self._eof:
            self._linger()
        else:
            self.drop()

    def _linger(self) -> None:
        self._closing, self._deaf = True, True
        self._stop_timers()
        self._shared.waiting.pop(self, None)
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.drop)

    def _refuse(self, refused: RefusedError) -> None:
        """Answer with the error and end the connection. Earlier requests are answered first."""
        if self._closing:
            return
        self._deaf = True
        serving = self.serving
        if serving is not None and not serving.more_body:
            self._drop_unfinished()
            self._last_error = refused
            return
        if serving is not None:
            serving.disconnected = True
            serving.message_event.set()
        if serving is None or not serving.response_started:
            self.transport.write(error_handlers.raw(refused.status, refused.message))
        if self._eof:
            self.drop()
        else:
            self._linger()

    def _drop_unfinished(self) -> None:
        """Forget requests that will never be complete."""
        while self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()

    def _probe(self, turn: int) -> None:
        """Send the next byte ahead, to find out whether a client that has closed its side is still there."""
        if self.serving is None or self.transport.is_closing():
            return
        if byte := self.serving.byte_ahead():
            self.transport.write(byte)
        if turn < len(PROBES_S):
            self._prober = self.loop.call_later(PROBES_S[turn], self._probe, turn + 1)

    # ---- timers

    def _watch(self) -> None:
        """Set the timer for what is waited for. Bytes that arrive do not set it back."""
        if self._closing:
            return
        limits, serving = self._limits, self.serving
        if serving is not None:
            wait, limit_s = ("body", limits.body_timeout_s) if serving.more_body else ("answer", None)
        elif self._meter.started:
            wait, limit_s = "head", limits.header_timeout_s
        else:
            wait, limit_s = "idle", limits.idle_timeout_s
        if self._watched == (wait, serving):
            return
        self._watched = (wait, serving)
        self._shared.waiting.pop(self, None)
        if wait != "answer":
            self._shared.waiting[self] = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if limit_s is None else self.loop.call_later(limit_s, self._expire, wait, limit_s)

    def _expire(self, wait: str, limit_s: float) -> None:
        if wait == "body" or (wait == "head" and self._meter.head_bytes):
            part = "body" if wait == "body" else "headers"
            self._refuse(RefusedError(408, f"the request's {part} took longer than {limit_s:g} s to come"))
        else:
            self.drop()

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._prober):
            if timer is not None:
                timer.cancel()
        self._timer = self._prober = None


class BodyCallbacks:
    """The callbacks of a parser that reads only a body; the head was read by another."""

    def __init__(self, connection: Connection) -> None:
        self.on_body, self.on_chunk_header = connection.on_body, connection.on_chunk_header
        self.on_message_complete = connection.on_message_complete
