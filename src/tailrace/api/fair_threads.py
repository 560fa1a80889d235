"""Threads for work that may take long: users take turns, and one user's work runs one piece at a time. Knows nothing of
what the work is."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Line = OrderedDict["Future[Any]", Callable[[], Any]]  # result → work, in order of arrival


class FairThreads:
    """`count` threads, which start with the first piece of work. `count - 1` users can't delay another user's work."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._lines: dict[str, Line] = {}  # user → waiting work; the next user's first
        self._running: set[str] = set()
        self._lock = threading.Condition()
        self._started = False

    def submit(self, user: str, work: Callable[[], T]) -> Future[T]:
        """Return the future result of `work`. If it is cancelled before its turn, it is never done."""
        done: Future[T] = Future()
        with self._lock:
            self._lines.setdefault(user, OrderedDict())[done] = work
            if not self._started:
                self._started = True
                for i in range(self._count):
                    threading.Thread(target=self._serve, name=f"{self._name} {i}", daemon=True).start()
            self._lock.notify()
        done.add_done_callback(partial(self._withdraw, user))
        return done

    def _withdraw(self, user: str, done: Future[Any]) -> None:
        """Drop work whose result was cancelled while it waited."""
        if not done.cancelled():
            return
        with self._lock:
            line = self._lines.get(user)
            if line is not None and line.pop(done, None) is not None and not line:
                del self._lines[user]

    def _serve(self) -> None:
        while True:
            self._serve_next()

    def _serve_next(self) -> None:
        with self._lock:
            user = self._lock.wait_for(self._find_user)
            line = self._lines.pop(user)
            done, work = line.popitem(last=False)
            if line:
                self._lines[user] = line  # behind the others
            self._running.add(user)
        try:
            run_piece(work, done)
        finally:
            with self._lock:
                self._running.discard(user)
                self._lock.notify()

    def _find_user(self) -> str:
        """Return the user whose turn it is; "" if all that wait have work running."""
        return next((user for user in self._lines if user not in self._running), "")


def run_piece(work: Callable[[], Any], done: Future[Any]) -> None:
    """Do the work, unless its result is cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except BaseException as error:  # a library's panic is no Exception
        done.set_exception(error)
