"""One request and its answer on a connection: uvicorn's cycle, which also knows HTTP/1.0."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tailrace.api.request_reader import RequestHead

log = logging.getLogger("uvicorn.error")


class CycleTransport:
    """The transport as a cycle sees it: to close it is up to the connection."""

    def __init__(self, transport: asyncio.Transport, hang_up: Callable[[], None]) -> None:
        self.write, self.close, self.is_closing = transport.write, hang_up, transport.is_closing


class RequestCycle(RequestResponseCycle):
    """Lives on a connection from a complete head to the end of the answer.

    Args:
        transport: as the cycle sees it. ended: called when the answer has gone out.
    """

    def __init__(
        self,
        scope: Any,
        transport: CycleTransport,
        flow: FlowControl,
        default_headers: list[tuple[bytes, bytes]],
        ended: Callable[[], None],
        head: RequestHead,
    ) -> None:
        super().__init__(
            scope=scope,
            transport=transport,  # type: ignore[arg-type]
            flow=flow,
            logger=log,
            access_logger=log,
            access_log=False,
            default_headers=default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.waits,
            keep_alive=head.keep_alive,
            on_response=ended,
        )
        self._until_close = False

    async def send(self, message: Any) -> None:
        """Some of the answer."""
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
