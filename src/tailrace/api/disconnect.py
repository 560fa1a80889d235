"""Work for a client that may disconnect: the work stops then. This module does not know what the work is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Awaitable[T], on_disconnect: Callable[[], None]) -> T:
    """The result of `work`. If the client disconnects first, or the caller is cancelled, `on_disconnect` is called and
    the work is cancelled.

    Raises:
        ClientDisconnect: the client disconnected first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        if not task.done():
            on_disconnect()
        await cancel_all(task, gone)


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait for them; what they raise is ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
