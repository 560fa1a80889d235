"""The front end's CPU work for requests: decoding, templates, tokenizing, checks. No request holds up the event loop
with it, and nothing is done for a client that has left."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from tailrace.api.disconnect import unless_disconnected
from tailrace.api.fair_threads import FairThreads
from tailrace.text.templates.processes import PROCESSES

T = TypeVar("T")

SHORT_CHARS = 2048  # tokenizing so many takes less than a millisecond; a change of threads is not worth it
LONG_CHARS = 1 << 16
JSON_BYTES = 16  # are decoded in the time in which one character is tokenized
SLICE_S = 0.001  # of one turn of the loop, for short work; a piece that has begun is finished


class WorkQueue:
    """Short work runs on the event loop, in order, a slice per turn of the loop, so that streams are served in between.
    Longer work runs on threads. Very long work has two threads of its own and waits only for other very long work.
    Rendering waits for a process that runs a template, so it has threads of its own, on which users take turns."""

    def __init__(self) -> None:
        self._long = ThreadPoolExecutor(2, "long request")
        self._rendering = FairThreads(PROCESSES, "rendering")
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._until_s: float | None = None  # when the slice of this turn of the loop is used up; None: it has not begun

    async def run(self, request: Request, work: Callable[[], T], size: int) -> T:
        """The result of `work`. The request's body must have been read.

        Args:
            size: characters, with which the cost of the work goes.

        Raises:
            ClientDisconnect: the client left before it was done.
        """
        if self._at_once(size):
            return work()
        return await unless_disconnected(request.receive, self._schedule_work(work, size), lambda: None)

    async def render(self, request: Request, work: Callable[[], T], user: str) -> T:
        """The result of `work`, which renders a chat template for a user. The request's body must have been read.

        Raises:
            ClientDisconnect: the client left before it was done.
        """
        done = asyncio.wrap_future(self._rendering.submit(user, work))
        return await unless_disconnected(request.receive, done, lambda: None)

    async def run_unwatched(self, work: Callable[[], T], size: int) -> T:
        """The same where somebody else watches whether the client is still there."""
        return work() if self._at_once(size) else await self._schedule_work(work, size)

    def _at_once(self, size: int) -> bool:
        if size > SHORT_CHARS or self._waiting:
            return False
        if self._until_s is not None:  # a request's short pieces are done one after the other, without a turn between
            return time.perf_counter() < self._until_s
        self._until_s = time.perf_counter() + SLICE_S
        asyncio.get_running_loop().call_soon(self._run_turn)
        return True

    def _schedule_work(self, work: Callable[[], T], size: int) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if size > SHORT_CHARS:
            return loop.run_in_executor(self._long if size > LONG_CHARS else None, work)
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, done))  # a turn has been asked for: the slice has begun
        return done

    def _run_turn(self) -> None:
        until_s = time.perf_counter() + SLICE_S
        try:
            while self._waiting and time.perf_counter() < until_s:
                work, done = self._waiting.popleft()
                if done.done():  # the client has left
                    continue
                try:
                    done.set_result(work())
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # a library's panic is no Exception
                    done.set_exception(error)
        finally:
            self._until_s = None
            if self._waiting:
                self._until_s = 0.0
                asyncio.get_running_loop().call_soon(self._run_turn)
