"""Responses that are generated without a client (`background: true`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from tailrace.errors import RateLimitError

if TYPE_CHECKING:
    from tailrace.api.user_limits import Admission

log = logging.getLogger(__name__)

MAX_RUNNING = 100  # of one user, in one front end: far fewer than the store keeps
END_S = 5.0  # for the last events to be stored


class BackgroundRuns:
    """The responses that one front end generates in the background."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def has(self, user: str, id: str) -> bool:
        """Return whether a response of the user runs in the background."""
        return (user, id) in self._tasks

    async def start(
        self, user: str, id: str, events: AsyncGenerator[Any, None], admission: Admission | None = None
    ) -> None:
        """Read the events to their end, whoever listens. Return when the response has begun.

        Args:
            admission: is finished at the end, and not with the request.

        Raises:
            RateLimitError: the user runs as many as it may.
        """
        if sum(owner == user for owner, _ in self._tasks) >= MAX_RUNNING:
            raise RateLimitError(f"at most {MAX_RUNNING} responses of a user run in the background, got one more")
        if admission is not None:
            admission.outlives = True
        self._tasks[user, id] = asyncio.create_task(self._read(user, id, events, admission))
        await asyncio.sleep(0)  # the task makes its first step now, so the response can be cancelled from here on

    async def _read(self, user: str, id: str, events: AsyncGenerator[Any, None], admission: Admission | None) -> None:
        try:
            async with aclosing(events):
                async for _ in events:
                    pass
        except Exception:
            log.exception("a response in the background failed")
        finally:
            del self._tasks[user, id]
            if admission is not None:
                admission.finish()

    async def close(self) -> None:
        """Wait until all have ended, whose engines have ended; cancel those that have not. Idempotent."""
        if tasks := [*self._tasks.values()]:
            _, late = await asyncio.wait(tasks, timeout=END_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
