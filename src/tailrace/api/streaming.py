"""Chunks → an HTTP answer: server-sent events as they come, or one body that a fold makes of them. Knows nothing of
the chunks' contents.

- `data: {…}\\n\\n`: one per chunk.
- `data: [DONE]\\n\\n`: only after the last chunk.
- `event: TYPE\\ndata: {…}\\n\\n`: if events have names (/v1/responses, /v1/messages). These streams have no [DONE].
- `data: {"error":…}\\n\\n`: if the request fails midway. Then the answer ends.
- `: keep-alive\\n\\n`: a comment (in /v1/messages an event) after a silence, also before the first chunk. While
  the model is loaded again after a sleep, a comment each second says how far the load is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.api import error_handlers
from tailrace.api.disconnect import cancel_all, unless_disconnected
from tailrace.api.user_line import leave_place

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
PROGRESS_S = 1.0  # between two comments about the progress of a load

Chunk = TypeVar("Chunk", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


class Abortable(Protocol):
    """A request that is being generated."""

    def describe_wait(self) -> str:
        """What it waits for, as text for its client; "" if it waits for tokens."""
        ...

    def abort(self, cause: str) -> None:
        """End the generation, because its client has gone."""
        ...


class EventFormat(NamedTuple):
    """The framing of chunks, the text after the last chunk, and the text that is sent during a silence."""

    frame: Callable[[msgspec.Struct], bytes]
    done: bytes
    silence: bytes = COMMENT


def json_response(body: msgspec.Struct | list[Any], status: int = 200) -> Response:
    """A struct, or a list of some, as a JSON answer."""
    return Response(_encode(body), status, media_type="application/json")


def frame_chunk(chunk: msgspec.Struct) -> bytes:
    """One event. JSON has no raw line breaks, so a frame is never split."""
    return b"".join((b"data: ", _encode(chunk), b"\n\n"))  # a long chunk is copied once


def named_frame(event: msgspec.Struct) -> bytes:
    """One event under the name of its type; an error has no type and is called "error"."""
    name = getattr(event, "type", "error")
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


class Frame(msgspec.Struct):
    """An event that is written already."""

    data: bytes


def keep_frame(event: msgspec.Struct) -> bytes:
    """The bytes of an event that is written already; an error is written now."""
    return event.data if isinstance(event, Frame) else frame_chunk(event)


PLAIN = EventFormat(frame_chunk, DONE)
NAMED = EventFormat(named_frame, b"")
KEPT = EventFormat(keep_frame, b"")


async def make_response(
    request: Request,
    generation: Abortable,
    chunks: AsyncGenerator[Chunk, None],
    fold: Callable[[AsyncGenerator[Chunk, None]], Awaitable[msgspec.Struct]],
    streamed: bool,
    form: EventFormat = PLAIN,
) -> Response:
    """The answer, streamed or whole. A client that leaves ends the generation.

    The first chunk is awaited before a stream begins, so that a refusal by the engine is still an HTTP error. It is not
    awaited for longer than `keep_alive_s`: a proxy on the way might give up.

    Raises:
        TailraceError: the request failed before anything was sent. ClientDisconnect: the client left.
    """

    leave_place(request.scope)

    def on_disconnect() -> None:
        generation.abort("disconnect")

    if not streamed:
        return json_response(await unless_disconnected(request.receive, fold(chunks), on_disconnect))
    keep_alive_s = request.app.state.front.config.keep_alive_s
    first = asyncio.ensure_future(anext(chunks))
    try:
        await unless_disconnected(request.receive, asyncio.wait((first,), timeout=keep_alive_s), on_disconnect)
        if first.done():
            first.result()
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):  # perhaps with the first chunk: then nothing else ends it
            on_disconnect()
        await cancel_all(first)
        await chunks.aclose()
        raise
    return EventStream(
        first, chunks, on_disconnect, Silence(keep_alive_s, form.silence, generation.describe_wait), form
    )


class Silence(NamedTuple):
    """What is sent if there is nothing to send: `text` after each `keep_alive_s`, or a comment each second if the
    request waits for something that can be described."""

    keep_alive_s: float
    text: bytes = COMMENT
    describe_wait: Callable[[], str] = str

    def choose_text(self) -> tuple[float, bytes]:
        """The seconds of silence, and what is sent then."""
        if waits := self.describe_wait():
            return min(PROGRESS_S, self.keep_alive_s), f": {waits}\n\n".encode()
        return self.keep_alive_s, self.text


class EventStream(Response):
    """Sends the chunks as they come.

    Args:
        first: a task that waits for the first chunk. It may be done already: a refusal could still become an HTTP
            error.
        rest: the other chunks; closed in every case. An error from either becomes an error event.
        on_disconnect: called if the client leaves, before `rest` is cancelled.
        silence: what is sent after a silence.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: asyncio.Future[Chunk],
        rest: AsyncGenerator[Chunk, None],
        on_disconnect: Callable[[], None],
        silence: Silence,
        form: EventFormat = PLAIN,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._first, self._rest, self._on_disconnect = first, rest, on_disconnect
        self._silence, self._form = silence, form
        self._sent_s = 0.0  # when the last bytes went out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Any = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with contextlib.aclosing(self._rest):
            try:
                await send(start)
                with contextlib.suppress(ClientDisconnect):
                    await unless_disconnected(receive, self._send_all(send), self._on_disconnect)
            finally:
                await cancel_all(self._first)

    async def _send_all(self, send: Send) -> None:
        async def send_bytes(data: bytes, more: bool = True) -> None:
            self._sent_s = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": more})

        keep_alive = asyncio.create_task(self._keep_alive(send_bytes))
        try:
            try:
                frame, done = self._form.frame, self._form.done
                await send_bytes(frame(await self._first))
                async for chunk in self._rest:
                    await send_bytes(frame(chunk))
            finally:
                await cancel_all(keep_alive)
        except Exception as error:
            await send_bytes(self._form.frame(error_handlers.of_any(error)), more=False)
        else:
            await send_bytes(done, more=False)

    async def _keep_alive(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Comments into long silences. Each is one write, as each frame is, so that neither splits the other."""
        self._sent_s = time.monotonic()
        while True:
            silent_s, (limit_s, text) = time.monotonic() - self._sent_s, self._silence.choose_text()
            if silent_s >= limit_s:
                await write(text)
                silent_s = 0.0
            await asyncio.sleep(limit_s - silent_s)
