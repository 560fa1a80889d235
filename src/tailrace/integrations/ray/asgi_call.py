"""One call of an ASGI application without a connection: the request's body is complete, the answer comes in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from tailrace.api.disconnect import cancel_all


async def call_app(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
    """Yield the application's messages in batches of all that were sent since the last one. Closing the generator acts
    as the client's disconnect."""
    sent: list[Message] = []
    news, left = asyncio.Event(), asyncio.Event()
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))
        news.set()

    task = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    task.add_done_callback(lambda _: news.set())
    try:
        while not task.done() or sent:
            await news.wait()
            news.clear()
            batch = sent.copy()
            sent.clear()
            if batch:
                yield batch
        task.result()
    finally:
        left.set()
        await cancel_all(task)
