"""The bytes of a request's body: its declared type, its size, and its compression."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tailrace.base.memory_trim import trim_memory

CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # content coding → zlib's wbits
PIECE = 1 << 18  # bytes unpacked at once; other tasks run in between
LARGE = 1 << 18  # bytes; after larger bodies the C library keeps much of the memory
QUIET_S = 1.0
_giving_back: asyncio.TimerHandle | None = None


async def read_raw(request: Request) -> bytes:
    """The bytes of the body.

    Raises:
        HTTPException: 413, 415.
    """
    check_content_type(request)
    raw = await read_bytes(request, request.app.state.front.config.max_body_mib << 20)
    if len(raw) > LARGE:
        give_back_later()
    return raw


def give_back_later() -> None:
    """Return the memory of large bodies to the system, in a thread, once none has come for QUIET_S."""
    global _giving_back
    if _giving_back is not None:
        _giving_back.cancel()
    loop = asyncio.get_running_loop()
    _giving_back = loop.call_later(QUIET_S, loop.run_in_executor, None, trim_memory)


def check_content_type(request: Request) -> None:
    """The body must be declared as JSON in UTF-8, else 415. A page of another site can send other types without a CORS
    preflight."""
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    if kind.strip() != "application/json" and not (
        kind.strip().startswith("application/") and kind.strip().endswith("+json")
    ):
        given = f"not {kind.strip()[:100]}" if kind else "and it is not given"
        raise HTTPException(
            415,
            f"the header content-type must be application/json, {given}; with curl: -H 'content-type: "
            f"application/json'",
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' \t"') not in CHARSETS:
            raise HTTPException(415, f"the charset must be utf-8, not {value.strip()[:100]}")


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body. More than `limit` bytes are a 413, before they are kept in memory."""
    too_large = HTTPException(413, f"the body must be at most {limit} bytes", {"connection": "close"})
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts, size = [], 0
    async for part in decompress_body(request):
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def decompress_body(request: Request) -> AsyncGenerator[bytes, None]:
    """The body in pieces, decompressed; where it was compressed, a piece has at most PIECE bytes.

    Raises:
        HTTPException: 400: the data is not of the coding it names. 415: an unknown coding, or several.
    """
    coding = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    if coding in ("", "identity"):
        async for part in request.stream():
            yield part
        return
    if coding not in WINDOWS:
        known = "gzip, deflate, identity"
        raise HTTPException(
            415, f"the content encoding must be one of {known}, not {coding[:100]}", {"accept-encoding": known}
        )
    inflate = zlib.decompressobj(WINDOWS[coding])
    try:
        async for part in request.stream():
            while part and not inflate.eof:
                yield inflate.decompress(part, PIECE)
                part = inflate.unconsumed_tail
                await asyncio.sleep(0)
            if part or inflate.unused_data:
                raise HTTPException(400, f"the body goes on behind the end of its {coding} data")
        if not inflate.eof:
            raise HTTPException(400, f"the body ends before its {coding} data does")
    except zlib.error as error:
        raise HTTPException(400, f"the body is not {coding}: {error}") from error
