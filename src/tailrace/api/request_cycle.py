"""One request and its answer on a connection: uvicorn's cycle, which can also send bytes of the answer ahead, and which
knows HTTP/1.0."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

BEGIN = b"HTTP/1.1 "  # of every answer, the interim ones too
MAX_ZEROS = 4  # before the size of a chunk; parsers take at least 16 digits


class Connected(Protocol):
    """What a cycle needs of its connection: uvicorn's attributes, and `hang_up`."""

    transport: Any
    scope: Any
    flow: Any
    logger: Any
    access_logger: Any
    access_log: bool
    server_state: Any

    def hang_up(self) -> None:
        """The present answer is the last one."""
        ...

    def on_response_complete(self) -> None:
        """The answer has gone out."""
        ...


class CycleTransport:
    """The transport as a cycle sees it: to close it is up to the connection."""

    def __init__(self, connection: Connected) -> None:
        self._transport = connection.transport
        self._ahead = 0  # bytes of the next line that were written before
        self.write, self.close, self.is_closing = self._transport.write, connection.hang_up, self._transport.is_closing

    def byte_ahead(self) -> bytes:
        """The next byte of any answer; none where all that is known has been written."""
        byte = BEGIN[self._ahead : self._ahead + 1]
        self._ahead += len(byte)
        self.write = self._write_rest
        return byte

    def _write_rest(self, data: bytes) -> None:
        self.write = self._transport.write
        self.write(data[self._ahead :])
        self._ahead = 0


class RequestCycle(RequestResponseCycle):
    """Lives on a connection from a complete head to the end of the answer."""

    def __init__(self, connection: Connected, expect_100_continue: bool, keep_alive: bool) -> None:
        self._own_transport = CycleTransport(connection)
        super().__init__(
            scope=connection.scope,
            transport=self._own_transport,  # type: ignore[arg-type]
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=connection.access_log,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=expect_100_continue,
            keep_alive=keep_alive,
            on_response=connection.on_response_complete,
        )
        self._zeros = 0
        self._until_close = False

    def byte_ahead(self) -> bytes:
        """One byte of what will be written next, whatever that is; none where none is certain."""
        if not self.response_started:
            return self._own_transport.byte_ahead()
        if not self.chunked_encoding or self.response_complete or self._zeros == MAX_ZEROS:
            return b""
        self._zeros += 1
        return b"0"

    async def send(self, message: Any) -> None:
        """Some of the answer."""
        self._zeros = 0
        if self._until_close:
            return await self._send_raw(message)
        if not self.response_started:
            self.keep_alive = self.keep_alive and not self.more_body
            names = [name.lower() for name, _ in message.get("headers", ())]
            if self.scope["http_version"] == "1.0" and b"content-length" not in names:
                self._until_close, self.chunked_encoding = True, False  # that version has no chunks
        await super().send(message)

    async def _send_raw(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.scope["method"] != "HEAD":
            self.transport.write(message.get("body", b""))
        if not message.get("more_body", False):
            self.response_complete = True
            self.message_event.set()
            self.transport.close()
            self.on_response()
