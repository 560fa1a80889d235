"""Server-sent events: chunks → frames → a response. Knows nothing of what the chunks say.

data: {…}\\n\\n      one per chunk
data: [DONE]\\n\\n   only after the last chunk
data: {"error":…}   instead, if it fails on the way; then the response ends
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.api import problems
from tailrace.api.disconnect import unless_gone

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def frame(chunk: msgspec.Struct) -> bytes:
    """One event. JSON has no raw line breaks, so a frame is never split."""
    return b"data: " + _encode(chunk) + b"\n\n"


class EventStream(Response):
    """Sends `first` and then `rest` as they come.

    Args:
        first: already there, so that a refusal could still become an HTTP error.
        rest: closed in every case. An error from it becomes an error event.
        on_gone: called if the client leaves, before `rest` is cancelled.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: msgspec.Struct, rest: AsyncGenerator[msgspec.Struct, None], on_gone: Callable[[], None]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._first, self._rest, self._on_gone = first, rest, on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Any = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with contextlib.aclosing(self._rest):
            await send(start)
            with contextlib.suppress(ClientDisconnect):
                await unless_gone(receive, self._send_all(send), self._on_gone)

    async def _send_all(self, send: Send) -> None:
        async def put(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await put(frame(self._first))
        try:
            async for chunk in self._rest:
                await put(frame(chunk))
        except Exception as error:
            await put(frame(problems.of_any(error)), more=False)
        else:
            await put(DONE, more=False)
