"""Bytes of a connection → the heads, bodies and ends of its requests, within the limits. Knows no socket."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import httptools

from tailrace.api.request_head import RefusedError, RequestTarget, framing_of, read_path, reason_of, target_of
from tailrace.api.request_meter import RequestMeter
from tailrace.config import ServerConfig

PIECE = 1 << 12  # bytes that are parsed at once


class RequestHead(NamedTuple):
    """A complete head.

    - headers: with names in small letters.
    - waits: the client sends the body after an answer 100 (Continue).
    - keep_alive: more requests may follow.
    """

    method: str
    version: str
    target: RequestTarget
    headers: list[tuple[bytes, bytes]]
    waits: bool
    keep_alive: bool


class Listener(Protocol):
    """Whoever takes what was read. Each method may raise RefusedError."""

    def on_head(self, head: RequestHead) -> None:
        """A head is complete."""

    def on_body(self, body: bytes) -> None:
        """Some of the body has come."""

    def on_end(self) -> bool:
        """The request is complete. Return whether another may follow."""
        ...


class RequestReader:
    """Reads the requests of one connection."""

    def __init__(self, limits: ServerConfig, listener: Listener) -> None:
        self._listener = listener
        self._meter = RequestMeter(limits)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url, self._headers = b"", list[tuple[bytes, bytes]]()
        self._ignores_upgrade = False  # the body belongs to a request whose upgrade is ignored
        self._ended = False  # the last request has been read

    @property
    def in_head(self) -> bool:
        """Some of a head has come, and not its end."""
        return self._meter.head_bytes > 0

    @property
    def path(self) -> str:
        """The path of the last request, as far as its URL has come; "" before the first one."""
        return read_path(self._url)

    def close(self) -> None:
        """Read no more. The parser and the listener hold the reader: only this frees them without a collection."""
        del self._parser, self._listener

    def feed(self, data: bytes) -> None:
        """Read a piece of at most PIECE bytes. What comes behind the last request is ignored.

        Raises:
            RefusedError: a limit is exceeded, or it is no valid HTTP.
        """
        self._meter.begin_piece(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            cause = error.__context__  # what a callback of ours has raised
            if self._ended:
                return
            raise cause if isinstance(cause, RefusedError) else reason_of(error, self._meter.first) from None
        self._meter.end_piece(len(data))

    def _parse(self, data: bytes) -> None:
        """Feed the parser. An upgrade that a request asks for is ignored; its body, if it has one, is read by another
        parser."""
        try:
            return self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        framing = framing_of(self._headers)
        if not self._ignores_upgrade or framing is None:
            return
        self._ignores_upgrade = False
        self._parser = httptools.HttpRequestParser(BodyCallbacks(self))
        self._parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n" + b": ".join(framing) + b"\r\n\r\n")
        self._parser.feed_data(rest)

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        """A request line comes."""
        if self._ended:
            raise ValueError("the last request has been read")
        self._url, self._headers = b"", []
        self._meter.begin_message()

    def on_url(self, url: bytes) -> None:
        """Some of the URL."""
        self._url += url
        self._meter.check_url(len(self._url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers are left out: they come after the request has been looked at."""
        if self._meter.in_head:
            self._headers.append((name.lower(), value))
            self._meter.add_header(len(name) + len(value) + 4, len(self._headers))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        parser, headers = self._parser, self._headers
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        target = target_of(method, version, self._url, headers)
        upgrading = parser.should_upgrade()
        waits = version == "1.1" and any(name == b"expect" for name, _ in headers)
        keep_alive = version == "1.1" and not upgrading and parser.should_keep_alive()
        self._listener.on_head(RequestHead(method, version, target, headers, waits, keep_alive))
        self._meter.end_head()
        self._ignores_upgrade = upgrading and framing_of(headers) is not None

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._meter.add_chunk()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._meter.add_body(len(body))
        self._listener.on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._ignores_upgrade:
            self._meter.end_message()
            self._ended = not self._listener.on_end()


class BodyCallbacks:
    """The callbacks of a parser that reads only a body; the head was read by another."""

    def __init__(self, reader: RequestReader) -> None:
        self.on_body, self.on_chunk_header = reader.on_body, reader.on_chunk_header
        self.on_message_complete = reader.on_message_complete
