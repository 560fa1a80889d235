"""How much of a request's prompts is computed, and the chunks that show it before the first token comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from tailrace.api.disconnect import cancel_all
from tailrace.api.schema.common import ProgressReport
from tailrace.wire.messages import PromptProgress

C = TypeVar("C")

PERIOD_S = 1.0  # between two reports without a change


class ProgressCounter:
    """The progress of all prompts of a request.

    Args:
        sizes: tokens of each prompt.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._total, self._begun_s = sum(sizes), time.perf_counter()
        self._cached, self._computed = [0] * len(sizes), [0] * len(sizes)
        self.changed = asyncio.Event()

    def update(self, p: int, event: PromptProgress) -> None:
        """Note how much of prompt p is computed."""
        self._cached[p], self._computed[p] = event.cached, event.computed
        self.changed.set()

    def take_report(self) -> ProgressReport:
        """Return the progress, and wait for a new change from now on."""
        self.changed.clear()
        milliseconds = int(1e3 * (time.perf_counter() - self._begun_s))
        return ProgressReport(self._total, sum(self._cached), sum(self._computed), milliseconds)


async def show_progress(
    chunks: AsyncGenerator[C, None], counter: ProgressCounter, make_chunk: Callable[[ProgressReport], C]
) -> AsyncGenerator[C, None]:
    """Yield the chunks. Before the first one, yield a chunk whenever more of the prompts is computed, and each second.

    Raises:
        Exception: what `chunks` raises.
    """
    async with aclosing(chunks):
        first = asyncio.ensure_future(anext(chunks))
        try:
            while not first.done():
                change = asyncio.ensure_future(counter.changed.wait())
                try:
                    await asyncio.wait((first, change), timeout=PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await cancel_all(change)
                if not first.done():
                    yield make_chunk(counter.take_report())
            chunk = first.result()
        finally:
            await cancel_all(first)
        if counter.changed.is_set():
            yield make_chunk(counter.take_report())
        yield chunk
        async for chunk in chunks:
            yield chunk
