"""The door: one connection, under limits that hold before anybody looks at a key. uvicorn's protocol, which has none of its own.

What is counted: headers, their bytes, the URL, the bytes that frame a body, requests that wait behind another, and connections. What is
timed: a head, a body, and an idle connection. Whoever exceeds a limit is answered in our error shape, and the connection ends.

A client that shuts its side down after its request gets its answer. Whether it is still there can only be learnt by writing, so from then
on the answer goes out byte by byte until it really comes: first "HTTP/1.1 ", then zeros before the size of the next chunk. A client that
is gone answers the first such byte with a reset, and the next one finds it (decision 0027).
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tailrace.api import error_handlers
from tailrace.api.door import Door
from tailrace.api.exchange import Exchange
from tailrace.api.head import RefusedError, reason_of, target_of

MAX_PIPELINED = 16  # requests that may wait behind the one that is being answered
MAX_HELD = 1 << 16  # bytes that may wait behind those, before reading stops
PIECE = 1 << 12  # bytes that are parsed at once
CHUNK_LINE = 12  # bytes that a chunk may take besides what it carries; what is beyond counts as extensions
FIRST = 16  # bytes by which other protocols are known
LINGER_S = 2.0  # that a refused client has to read why, while what it still sends is thrown away
PROBES_S = (0.01, 0.04, 0.2, 1.0, 4.0, 15.0, 40.0)  # between the bytes that find out whether a client is still there


class Connection(HttpToolsProtocol):
    """One connection, from its first byte to its last."""

    def __init__(self, door: Door, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self.serving: Exchange | None = None  # what is being answered; what was parsed behind it is in self.pipeline
        self._door, self._limits = door, door.config
        self._watched: tuple[str, Exchange | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._prober: asyncio.TimerHandle | None = None
        self._in_head, self._started = True, True  # in a head (or before it); some of it is expected by now
        self._boundary = False  # a head or a body began or ended in the data at hand
        self._first = b""  # of what is being read
        self._raw = 0  # bytes of a head that is not complete
        self._fields = 0  # bytes of its headers
        self._framing = 0  # bytes that a body may still take besides what it carries
        self._bare = False  # it comes after an upgrade that is ignored
        self._held = bytearray()
        self._deaf = False  # what still comes is thrown away
        self._entered = False
        self._closing = self._lost = False
        self._eof = False
        self._why: RefusedError | None = None
        self._last_words: RefusedError | None = None

    # ---- the connection's life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        try:
            self._door.enter(self._address)
        except RefusedError as refused:  # nothing of it is read: it must cost nobody anything
            self.transport.write(error_handlers.raw(refused.status, refused.message))
            self.drop()
        else:
            self._entered = True
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is; whoever works for them is told."""
        self._lost = True
        if self._entered:
            self._door.leave(self._address)
        self._door.waiting.pop(self, None)
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
        """The client will send no more; true where it still gets something."""
        self._eof, self._deaf = True, True
        serving = self.serving
        if self._closing or (serving is None and not self._raw):
            return False
        if serving is None or serving.more_body:
            self._refuse(RefusedError(400, "the connection ended before the request was complete"))
            return True
        self._drop_unfinished()
        self._probe(0)
        return True

    def shutdown(self) -> None:
        """The server ends: what is being answered is the last."""
        self.pipeline.clear()
        self._deaf = self._deaf or self.serving is None or not self.serving.more_body
        if self.serving is None:
            self.drop()
        else:
            self.serving.keep_alive = False

    def drop(self) -> None:
        """Close without a word; whoever does not even read what is on its way is cut."""
        self._closing, self._deaf = True, True
        self._stop_timers()
        self._door.waiting.pop(self, None)
        self.transport.close()
        if not self._lost:  # else a clock would hold on to all of it
            self._await_flush(-1)

    def _await_flush(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.transport.abort()
        elif left:
            self._timer = self.loop.call_later(self._limits.idle_timeout_s, self._await_flush, left)

    # ---- bytes in

    def data_received(self, data: bytes) -> None:
        """More of a request, or of several; looked at in pieces, because where one ends inside of a piece, that piece is not counted."""
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
        self._boundary = False
        self._started = self._started or self._in_head
        if self._in_head and len(self._first) < FIRST:
            self._first += data[:FIRST]
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if not self._deaf:  # else it is behind the last request
                self._refuse(self._why or reason_of(error, self._first))
            return
        if self._boundary:  # at most a piece of it is not counted
            self._raw = len(data) if self._started else 0
            return
        if self._in_head:
            self._raw += len(data)
            if self._raw > self._limits.max_header_bytes + self._limits.max_url_bytes:
                self._refuse(too_large(f"its headers must have at most {self._limits.max_header_bytes} bytes in all"))
        else:
            self._framing -= len(data)
            if self._framing < 0:
                most = self._limits.max_header_bytes
                self._refuse(too_large(f"chunk extensions and trailers must have at most {most} bytes in all"))

    def _parse(self, data: bytes) -> None:
        """A request that asks to speak something else is answered as if it had not; its body, if it has one, is ours to read."""
        try:
            return self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        framing = framing_of(self.headers)
        if not self._bare or framing is None:
            return
        self._bare = False
        self.parser = httptools.HttpRequestParser(BodyOnly(self))
        self.parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n" + b": ".join(framing) + b"\r\n\r\n")
        self.parser.feed_data(rest)

    # ---- what the parser says

    def on_message_begin(self) -> None:
        """A request line comes."""
        if self._deaf:
            raise ValueError("the last request has been read")
        super().on_message_begin()
        self._boundary = self._started = True
        self._fields = 0

    def on_url(self, url: bytes) -> None:
        """Some of the URL."""
        super().on_url(url)
        if len(self.url) > self._limits.max_url_bytes:
            self._stop(RefusedError(414, f"the URL must have at most {self._limits.max_url_bytes} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers, which would come too late for whoever has looked, are left out."""
        if not self._in_head:
            return
        super().on_header(name, value)
        limits, size = self._limits, len(name) + len(value) + 4
        self._fields += size
        if size > limits.max_header_line_bytes:
            self._stop(too_large(f"a header must have at most {limits.max_header_line_bytes} bytes"))
        if self._fields > limits.max_header_bytes:
            self._stop(too_large(f"its headers must have at most {limits.max_header_bytes} bytes in all"))
        if len(self.headers) > limits.max_headers:
            self._stop(too_large(f"there must be at most {limits.max_headers} headers"))

    def on_headers_complete(self) -> None:
        """The head is complete: answer, or wait for a turn."""
        parser, method = self.parser, self.parser.get_method().decode("ascii")
        version = parser.get_http_version()
        try:
            target = target_of(method, version, self.url, self.headers)
        except RefusedError as refused:
            self._why = refused
            raise
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(RefusedError(400, f"more than {MAX_PIPELINED} requests wait behind another"))
        self.scope |= {  # type: ignore[operator]
            "method": method,
            "http_version": version,
            "path": target.path,
            "raw_path": target.raw_path,
            "query_string": target.query,
        }
        self._in_head, self._boundary, self._framing = False, True, self._limits.max_header_bytes
        self._started, self._raw = False, 0
        upgrading = parser.should_upgrade()
        self._bare = upgrading and framing_of(self.headers) is not None
        keep_alive = version == "1.1" and not upgrading and parser.should_keep_alive()
        self.cycle = exchange = Exchange(self, self.expect_100_continue and version == "1.1", keep_alive)
        if self.serving is None:
            self._start_asgi_task(exchange, self.app)
        else:
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._framing += CHUNK_LINE

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._framing += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._bare:
            return
        self._in_head, self._boundary, self._first = True, True, b""
        self._deaf = not self.cycle.keep_alive
        super().on_message_complete()

    def _stop(self, refused: RefusedError) -> None:
        self._why = refused
        raise refused  # the parser wraps it

    # ---- answers

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.serving = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """An answer has gone out: the next, or wait for a request."""
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
        if self.serving is None and self._last_words is not None:
            self._refuse(self._last_words)
        elif self.serving is None and self._eof:
            self.drop()
        else:
            self._watch()

    def hang_up(self) -> None:
        """The answer that is going out is the last; where the request is still coming, let the client read why before it is cut off."""
        unfinished = self.serving is not None and self.serving.more_body
        if unfinished and not self._eof:
            self._linger()
        else:
            self.drop()

    def _linger(self) -> None:
        self._closing, self._deaf = True, True
        self._stop_timers()
        self._door.waiting.pop(self, None)
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.drop)

    def _refuse(self, refused: RefusedError) -> None:
        """Say why, and end the connection; what was asked before is answered first."""
        if self._closing:
            return
        self._deaf = True
        serving = self.serving
        if serving is not None and not serving.more_body:
            self._drop_unfinished()
            self._last_words = refused
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
        """Forget a request that will never be complete."""
        while self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()

    def _probe(self, turn: int) -> None:
        """A byte of what comes next, to a client of which nothing more will be heard."""
        if self.serving is None or self.transport.is_closing():
            return
        if byte := self.serving.byte_ahead():
            self.transport.write(byte)
        if turn < len(PROBES_S):
            self._prober = self.loop.call_later(PROBES_S[turn], self._probe, turn + 1)

    # ---- clocks

    def _watch(self) -> None:
        """One clock at a time, by what is waited for; bytes that come do not turn it back."""
        if self._closing:
            return
        limits, serving = self._limits, self.serving
        if serving is not None:
            wait, limit_s = ("body", limits.body_timeout_s) if serving.more_body else ("answer", None)
        elif self._started:
            wait, limit_s = "head", limits.header_timeout_s
        else:
            wait, limit_s = "idle", limits.idle_timeout_s
        if self._watched == (wait, serving):
            return
        self._watched = (wait, serving)
        self._door.waiting.pop(self, None)
        if wait != "answer":
            self._door.waiting[self] = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if limit_s is None else self.loop.call_later(limit_s, self._expire, wait, limit_s)

    def _expire(self, wait: str, limit_s: float) -> None:
        if wait == "body" or (wait == "head" and self._raw):
            part = "body" if wait == "body" else "headers"
            self._refuse(RefusedError(408, f"the request's {part} took longer than {limit_s:g} s to come"))
        else:
            self.drop()

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._prober):
            if timer is not None:
                timer.cancel()
        self._timer = self._prober = None


class BodyOnly:
    """What a parser tells that reads a body whose head was read by another."""

    def __init__(self, connection: Connection) -> None:
        self.on_body, self.on_chunk_header = connection.on_body, connection.on_chunk_header
        self.on_message_complete = connection.on_message_complete


def framing_of(headers: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    """The header that says how long the body is; None: there is none."""
    found = (h for h in headers if h[0] == b"transfer-encoding" or (h[0] == b"content-length" and h[1].strip(b" 0")))
    return next(found, None)


def too_large(what: str) -> RefusedError:
    """Of heads."""
    return RefusedError(431, f"the request is too large: {what}")
