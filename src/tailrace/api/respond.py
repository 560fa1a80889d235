"""A generator of chunks → the HTTP answer: streamed, or folded; the way all generating endpoints share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.fold import gather
from tailrace.api.sse import ClientGone, EventStream, unless_gone

ENCODER = msgspec.json.Encoder()
CLOSED = 499  # what nginx logs for a client that went away; nobody reads it


def new_id(prefix: str, asked: str | None) -> str:
    """An answer's id."""
    return f"{prefix}-{asked or uuid4().hex}"


async def respond(
    request: Request,
    chunks: AsyncGenerator[Any, None],
    fold: Callable[[list[Any]], Any],
    stream: bool,
    include_usage: bool,
) -> Response:
    """The answer made of `chunks`, whose last one has no choices but the usage. Ends the generator in every case."""
    headers = {"x-request-id": request.headers.get("x-request-id") or uuid4().hex}
    try:
        if not stream:
            whole = fold(await unless_gone(request.receive, gather(chunks)))
            return Response(ENCODER.encode(whole), 200, headers, "application/json")
        events = encoded(chunks, include_usage)
        first = await unless_gone(request.receive, events.__anext__())
        return EventStream(first, events, headers)
    except ClientGone:
        await chunks.aclose()
        return Response(status_code=CLOSED)


async def encoded(chunks: AsyncIterator[Any], include_usage: bool) -> AsyncGenerator[bytes, None]:
    """JSON of the chunks; the usage chunk only if it was asked for, and then a null usage on all others."""
    async for chunk in chunks:
        if chunk.choices:
            chunk.usage = None if include_usage else UNSET
        elif not include_usage:
            continue
        yield ENCODER.encode(chunk)
