"""Merges several async iterators into one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

from tailrace.api.disconnect import cancel_all

T = TypeVar("T")

AT_ONCE = 64  # sources that begin, or end, in one turn of the loop

Items = asyncio.Queue[tuple[T] | Exception | None]  # an item; what a source has raised; None: a source has ended


async def queue_items(source: AsyncIterator[T], queue: Items[T]) -> None:
    """Put the items of one source into the queue."""
    try:
        async for item in source:
            await queue.put((item,))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)


async def merge_iterators(sources: Sequence[AsyncIterator[T]]) -> AsyncGenerator[T, None]:
    """Yield the items of all sources as they come. The order within a source is kept. A source waits for the reader.

    Raises:
        Exception: the first that a source raises. Then, and when this is closed early, the other sources are cancelled.
    """
    if len(sources) == 1:
        async for item in sources[0]:
            yield item
        return
    queue: Items[T] = asyncio.Queue(maxsize=1)
    pumps: list[asyncio.Future[None]] = []
    left = len(sources)
    try:
        for source in sources:
            pumps.append(asyncio.ensure_future(queue_items(source, queue)))
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
                await cancel_all(*pumps[start : start + AT_ONCE])
        finally:  # the wait above may be cancelled too
            for task in pumps:
                task.cancel()
