"""Several async iterators as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

from tailrace.api.disconnect import end

T = TypeVar("T")

AT_ONCE = 64  # sources that begin, or end, in one turn of the loop


async def merge(sources: Sequence[AsyncIterator[T]]) -> AsyncGenerator[T, None]:
    """The items of all sources as they come; each source's own order is kept, and each waits while nobody asks.

    Raises:
        Exception: the first that a source raises. Then, and when this is closed early, the other sources are cancelled.
    """
    if len(sources) == 1:
        async for item in sources[0]:
            yield item
        return
    queue: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(maxsize=1)

    async def pump(source: AsyncIterator[T]) -> None:
        try:
            async for item in source:
                await queue.put((item,))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    pumps: list[asyncio.Future[None]] = []
    left = len(sources)
    try:
        for source in sources:
            pumps.append(asyncio.ensure_future(pump(source)))
            if len(pumps) % AT_ONCE == 0:
                await asyncio.sleep(0)
        while left:
            got = await queue.get()
            if got is None:
                left -= 1
            elif isinstance(got, Exception):
                raise got
            else:
                yield got[0]
    finally:
        try:
            for start in range(0, len(pumps), AT_ONCE):
                await end(*pumps[start : start + AT_ONCE])
        finally:  # who waits here may be cancelled once more
            for task in pumps:
                task.cancel()
