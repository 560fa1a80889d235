"""As much HTTP/1.1 as the scripted server needs: a request's head and body, plain answers, event streams.

Written on asyncio's streams, so that the server can do everything wrong that a fault asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


@dataclass(frozen=True)
class Asked:
    """A request. gone: whether the client has left."""

    method: str
    path: str
    body: bytes
    gone: Callable[[], bool]


@dataclass(frozen=True)
class Plain:
    """An answer with a body: JSON, or text as it is."""

    body: Any
    status: int = 200


@dataclass(frozen=True)
class Events:
    """An event stream: its lines as bytes. Where they raise a ConnectionError the connection is cut."""

    lines: AsyncGenerator[bytes]


Handle = Callable[[Asked], Awaitable[Plain | Events]]


class HttpFrame:
    """Serves `handle` on a free port of 127.0.0.1, in the running loop: `async with HttpFrame(handle) as frame`."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> HttpFrame:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 26)
        self.url = "http://127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]  # noqa: UP031, shorter
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer. Returns whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        answer = await self.handle(Asked(method, path, body, lambda: reader.at_eof() or bool(reader.exception())))
        if isinstance(answer, Plain):
            await write_plain(writer, answer)
        else:
            await write_events(writer, answer)
        return True


async def write_plain(writer: asyncio.StreamWriter, answer: Plain) -> None:
    text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
    kind = "text/plain" if isinstance(answer.body, str) else "application/json"
    data = text.encode(errors="surrogatepass")
    reason = REASONS.get(answer.status, "Status")
    writer.write(f"HTTP/1.1 {answer.status} {reason}\r\nContent-Type: {kind}\r\n".encode())
    writer.write(f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


async def write_events(writer: asyncio.StreamWriter, answer: Events) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with contextlib.aclosing(answer.lines) as lines:
        async for data in lines:
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
