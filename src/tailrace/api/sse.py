"""Server-sent events, and clients that go away.

A frame is `data: JSON` and an empty line; the stream ends with `data: [DONE]` after a finish, and only then. An error in
mid-stream is one frame with an error object, then the connection closes without [DONE], so it can't be taken for success.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.api import problems
from tailrace.errors import TailraceError

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


def frame(json: bytes) -> bytes:
    """One event."""
    return b"data: " + json + b"\n\n"


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, cancelled if the client goes away first.

    Raises:
        ClientGone, or whatever `work` raises.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(Response):
    """Sends the JSON that `events` yields. `first` was awaited before, so that refusals could still be HTTP errors."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._first, self._events = first, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except (ClientGone, OSError):
            pass
        finally:
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": frame(self._first), "more_body": True})
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": frame(event), "more_body": True})
            end = DONE
        except TailraceError as error:
            end = frame(problems.body(error))
        await send({"type": "http.response.body", "body": end, "more_body": False})
