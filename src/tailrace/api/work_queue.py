"""The front end's CPU work for requests: decoding, templates, tokenizing, checks. No request holds up the event loop
with it, and nothing is done for a client that has left. Users take turns by the time that their work takes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from starlette.requests import Request

from tailrace.api.disconnect import unless_disconnected
from tailrace.api.user import user_of
from tailrace.base.fair_line import FairLine, Weigh, weigh_equally
from tailrace.base.fair_threads import FairThreads
from tailrace.text.templates.processes import PROCESSES

T = TypeVar("T")

SHORT_CHARS = 2048  # tokenizing so many takes less than a millisecond; a change of threads is not worth it
LONG_CHARS = 1 << 16
JSON_BYTES = 16  # are decoded in the time in which one character is tokenized
SLICE_S = 0.001  # of one turn of the loop, for short work; a piece that has begun is finished
THREADS = max(2, min(32, os.cpu_count() or 1))  # that one user may take for work of medium length
LONG_THREADS = 2  # the same for very long work


class WorkQueue:
    """Short work runs on the event loop, a slice per turn of the loop, so that streams are served in between. Longer
    work runs on threads. Very long work has threads of its own and waits only for other very long work. Rendering waits
    for a process that runs a template, so it has threads of its own.

    Everywhere the next piece belongs to the user whose work took the least time, divided by the weight. One user leaves
    a thread free.

    Args:
        weigh: returns a user's weight.
    """

    def __init__(self, weigh: Weigh = weigh_equally) -> None:
        self._weigh = weigh
        self._medium = FairThreads(THREADS + 1, "request", per_user=THREADS)
        self._long = FairThreads(LONG_THREADS + 1, "long request", per_user=LONG_THREADS)
        self._rendering = FairThreads(PROCESSES, "rendering")
        self._waiting: FairLine[tuple[Callable[[], Any], asyncio.Future[Any]]] = FairLine()
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
        done = self._schedule_work(user_of(request.scope), work, size)
        return await unless_disconnected(request.receive, done, lambda: None)

    async def render(self, request: Request, work: Callable[[], T]) -> T:
        """The result of `work`, which renders a chat template. The request's body must have been read.

        Raises:
            ClientDisconnect: the client left before it was done.
        """
        done = asyncio.wrap_future(self._submit(self._rendering, user_of(request.scope), work))
        return await unless_disconnected(request.receive, done, lambda: None)

    async def run_unwatched(self, user: str, work: Callable[[], T], size: int) -> T:
        """The same as `run` where somebody else watches whether the client is still there."""
        return work() if self._at_once(size) else await self._schedule_work(user, work, size)

    def _at_once(self, size: int) -> bool:
        if size > SHORT_CHARS or self._waiting.size:
            return False
        if self._until_s is not None:  # a request's short pieces are done one after the other, without a turn between
            return time.perf_counter() < self._until_s
        self._until_s = time.perf_counter() + SLICE_S
        asyncio.get_running_loop().call_soon(self._run_turn)
        return True

    def _schedule_work(self, user: str, work: Callable[[], T], size: int) -> asyncio.Future[T]:
        if size > SHORT_CHARS:
            return asyncio.wrap_future(self._submit(self._long if size > LONG_CHARS else self._medium, user, work))
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # a turn has been asked for: the slice has begun
        self._waiting.add(user, (work, done), weight=self._weigh(user))
        return done

    def _submit(self, threads: FairThreads, user: str, work: Callable[[], T]) -> Future[T]:
        return threads.submit(user, work, weight=self._weigh(user))

    def _run_turn(self) -> None:
        now_s = time.perf_counter()
        until_s = now_s + SLICE_S
        try:
            while now_s < until_s and (taken := self._waiting.take()) is not None:
                user, (work, done) = taken
                begun_s = now_s
                try:
                    run_short(work, done)
                finally:
                    now_s = time.perf_counter()
                    self._waiting.finish(user, now_s - begun_s)
        finally:
            self._until_s = None
            if self._waiting.size:
                self._until_s = 0.0
                asyncio.get_running_loop().call_soon(self._run_turn)


def run_short(work: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    """Do the work, unless the client has left."""
    if done.done():
        return
    try:
        done.set_result(work())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a library's panic is no Exception
        done.set_exception(error)
