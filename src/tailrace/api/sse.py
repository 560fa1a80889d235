"""Server-sent events: chunks → frames → a response. Knows nothing of what the chunks say.

data: {…}\\n\\n      one per chunk
data: [DONE]\\n\\n   only after the last chunk
event: TYPE\\ndata: {…}\\n\\n   where events have names (the Responses API), and then no [DONE]
data: {"error":…}   instead, if it fails on the way; then the response ends
: keep-alive\\n\\n   a comment, between frames, after a silence; also before the first chunk, if that takes long
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.api import error_handlers
from tailrace.api.disconnect import end, unless_gone

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

Chunk = TypeVar("Chunk", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


def frame(chunk: msgspec.Struct) -> bytes:
    """One event. JSON has no raw line breaks, so a frame is never split."""
    return b"data: " + _encode(chunk) + b"\n\n"


def named_frame(event: msgspec.Struct) -> bytes:
    """One event under its type's name; an error is called so."""
    name = getattr(event, "type", "error")
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


class Form(NamedTuple):
    """How chunks are framed, and what follows the last one."""

    frame: Callable[[msgspec.Struct], bytes]
    done: bytes


PLAIN = Form(frame, DONE)
NAMED = Form(named_frame, b"")


class EventStream(Response):
    """Sends the chunks as they come.

    Args:
        first: a task that waits for the first chunk. It may be done already, so that a refusal could still become an HTTP error.
        rest: the others; closed in every case. An error from either becomes an error event.
        on_gone: called if the client leaves, before `rest` is cancelled.
        keep_alive_s: silence after which a comment is sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: asyncio.Future[Chunk],
        rest: AsyncGenerator[Chunk, None],
        on_gone: Callable[[], None],
        keep_alive_s: float,
        form: Form = PLAIN,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._first, self._rest, self._on_gone, self._keep_alive_s = first, rest, on_gone, keep_alive_s
        self._form = form
        self._sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Any = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with contextlib.aclosing(self._rest):
            try:
                await send(start)
                with contextlib.suppress(ClientDisconnect):
                    await unless_gone(receive, self._send_all(send), self._on_gone)
            finally:
                await end(self._first)

    async def _send_all(self, send: Send) -> None:
        async def put(data: bytes, more: bool = True) -> None:
            self._sent_s = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": more})

        pinger = asyncio.create_task(self._ping(put))
        try:
            try:
                frame, done = self._form
                await put(frame(await self._first))
                async for chunk in self._rest:
                    await put(frame(chunk))
            finally:
                await end(pinger)
        except Exception as error:
            await put(self._form.frame(error_handlers.of_any(error)), more=False)
        else:
            await put(done, more=False)

    async def _ping(self, put: Callable[[bytes], Awaitable[None]]) -> None:
        """Comments into long silences. One write each, as frames are, so that neither splits the other."""
        self._sent_s = time.monotonic()
        while True:
            silent_s = time.monotonic() - self._sent_s
            if silent_s >= self._keep_alive_s:
                await put(COMMENT)
                silent_s = 0.0
            await asyncio.sleep(self._keep_alive_s - silent_s)
