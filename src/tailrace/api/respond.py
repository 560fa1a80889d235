"""One generator of chunks, two ways to answer: as events, or folded into one body. A client that leaves ends either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.chunks import Work
from tailrace.api.disconnect import end, unless_gone
from tailrace.api.sse import PLAIN, EventStream, Form

Chunk = TypeVar("Chunk", bound=msgspec.Struct)

REQUEST_ID = "x-request-id"
MAX_REQUEST_ID = 128

_encode = msgspec.json.Encoder().encode


def json_answer(body: msgspec.Struct, status: int = 200) -> Response:
    """A struct as a JSON response."""
    return Response(_encode(body), status, media_type="application/json")


async def respond(
    request: Request,
    generation: Work,
    chunks: AsyncGenerator[Chunk, None],
    fold: Callable[[AsyncGenerator[Chunk, None]], Awaitable[msgspec.Struct]],
    streamed: bool,
    form: Form = PLAIN,
) -> Response:
    """The first chunk is awaited before a stream begins, so that a refusal by the engine is still an HTTP error; but not for so long
    that somebody on the way would give up.

    Raises:
        TailraceError: it failed before anything was sent. ClientDisconnect: nobody is there any more.
    """

    def gone() -> None:
        generation.abort("disconnect")

    if not streamed:
        return json_answer(await unless_gone(request.receive, fold(chunks), gone))
    keep_alive_s = request.app.state.front.config.keep_alive_s
    first = asyncio.ensure_future(anext(chunks))
    try:
        await unless_gone(request.receive, asyncio.wait((first,), timeout=keep_alive_s), gone)
        if first.done():
            first.result()
    except BaseException:
        await end(first)
        raise
    return EventStream(first, chunks, gone, keep_alive_s, form)


def id_of_headers(value: str | None) -> str:
    """The client's own id if it is a short printable word, else a fresh one."""
    if value and len(value) <= MAX_REQUEST_ID and all("!" <= c <= "~" for c in value):
        return value
    return uuid4().hex
