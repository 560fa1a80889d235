"""Resumable streams of the fake server: their events are kept, and outlive the connection that asked for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class KeptStreams:
    """Events by the id of the answer. cancelled: names of requests that a client has ended."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self._events: dict[str, list[str | None]] = {}  # None comes last
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, id: str, events: AsyncIterator[str]) -> None:
        """Keep the events of an answer, whoever reads."""
        self._events[id] = []
        self._tasks[id] = asyncio.create_task(self._keep(id, events))

    def __contains__(self, id: str) -> bool:
        return id in self._events

    async def follow(self, id: str, breaks_at: int = 0) -> AsyncIterator[str]:
        """All events, from the first one on. breaks_at: the connection breaks after so many; 0: never."""
        events, number = self._events[id], 0
        while True:
            for event in events[number:]:
                if event is None:
                    return
                yield event
                number += 1
                if number == breaks_at:
                    raise OSError("the connection breaks here")
            await asyncio.sleep(0.01)

    def cancel(self, name: str) -> bool:
        """End a request by its name. False: nobody runs it."""
        self.cancelled.append(name)
        found = [task for id, task in self._tasks.items() if id.endswith(f"-{name}") and not task.done()]
        for task in found:
            task.cancel()
        return bool(found)

    def forget(self) -> None:
        """Lose all events, as a server that starts again."""
        for task in self._tasks.values():
            task.cancel()
        self._events.clear()

    async def _keep(self, id: str, events: AsyncIterator[str]) -> None:
        kept = self._events[id]
        try:
            with contextlib.suppress(OSError):  # the script breaks it
                async for event in events:
                    kept.append(event)
        finally:
            kept.append(None)


def streams_of(request: Request) -> KeptStreams:
    return request.app.state.streams


def unknown(message: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": "id", "code": "request_not_found"}
    return JSONResponse({"error": error}, 404)


async def resume(request: Request) -> Response:
    """GET /v1/chat/completions/{id} and /v1/completions/{id}, without Last-Event-ID."""
    id, streams = request.path_params["id"], streams_of(request)
    if id not in streams:
        return unknown(f'no events of "{id}" are kept (any more)')
    return StreamingResponse(streams.follow(id), media_type="text/event-stream")


async def cancel(request: Request) -> Response:
    """DELETE /v1/requests/{name}."""
    name = request.path_params["name"]
    if not streams_of(request).cancel(name):
        return unknown(f'no request "{name}" is running')
    return JSONResponse({"id": name, "object": "request", "cancelled": True})


ROUTES = [
    Route("/v1/chat/completions/{id}", resume),
    Route("/v1/completions/{id}", resume),
    Route("/v1/requests/{name}", cancel, methods=["DELETE"]),
]
