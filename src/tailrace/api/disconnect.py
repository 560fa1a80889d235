"""Work for a client that may leave: it stops when the client is gone. Knows nothing of what the work is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def until_gone(receive: Receive) -> None:
    """Return when the client is gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T], on_gone: Callable[[], None]) -> T:
    """The result of `work`. If the client leaves first, or the caller is cancelled: `on_gone`, and the work ends.

    Raises:
        ClientDisconnect: the client left first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        if not task.done():
            on_gone()
        await end(task, gone)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel and wait; what they raise then is nobody's business any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
