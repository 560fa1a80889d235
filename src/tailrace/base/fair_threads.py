"""Threads for work that may take long: users take turns by the time that their work takes. Knows nothing of what the
work is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from tailrace.base.fair_line import FairLine

T = TypeVar("T")

IDLE_S = 10.0  # after which a thread without work ends


class FairThreads:
    """At most `count` threads, which start with the work.

    Args:
        per_user: threads that one user may take. The others are left for other users.
        clock: returns seconds.
    """

    def __init__(
        self, count: int, name: str, per_user: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._count, self._name, self._clock = count, name, clock
        self._line: FairLine[Piece[Any]] = FairLine(per_user)
        self._lock = threading.Condition(threading.Lock())
        self._threads = 0

    def submit(self, user: str, work: Callable[[], T], urgent: bool = False, weight: int = 1) -> Future[T]:
        """Return the future result of `work`. If it is cancelled before its turn, it is never done.

        Args:
            urgent: before the user's other work. weight: the user's.
        """
        piece = Piece(work)
        with self._lock:
            self._line.add(user, piece, urgent, weight)
            if self._threads < min(self._count, self._line.size):
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
                self._threads += 1
            else:
                self._lock.notify()
        piece.add_done_callback(partial(self._withdraw, user))
        return piece

    def cancel_waiting(self) -> None:
        """Cancel all work that has not begun."""
        with self._lock:
            waiting = list(self._line)
        for piece in waiting:
            piece.cancel()

    def _withdraw(self, user: str, piece: Future[Any]) -> None:
        """Drop work whose result was cancelled while it waited."""
        if piece.cancelled():
            with self._lock:
                self._line.discard(user, piece)  # type: ignore[arg-type]

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Do the next piece of work. Return False if there was none for a while."""
        with self._lock:
            idle = False
            while (taken := self._line.take()) is None:
                if idle:
                    self._threads -= 1
                    return False
                idle = not self._lock.wait(IDLE_S)
        user, piece = taken
        begun_s = self._clock()
        try:
            piece.run()
        finally:
            with self._lock:
                self._line.finish(user, self._clock() - begun_s)
        return True


class Piece(Future[T]):
    """The future result of work."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work: Callable[[], T] | None = work

    def run(self) -> None:
        """Do the work, unless it is cancelled."""
        work, self._work = self._work, None
        if work is None or not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(work())
        except BaseException as error:  # a library's panic is no Exception
            self.set_exception(error)
