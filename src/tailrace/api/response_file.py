"""The file of stored responses, on a thread of its own: the event loop never waits for a disk (decision 0094)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tailrace.api.response_database import ResponseDatabase
from tailrace.api.response_store import Responses, StoreBounds
from tailrace.errors import ConfigError, StorageError, take_first_line

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0  # after which a disk counts as broken
MAX_PENDING = 1000  # calls that wait for the disk
LOCK = "-lock"  # the end of the lock's name, as SQLite's -wal and -shm

T = TypeVar("T")


class ResponseFile:
    """The stored responses of all front ends, in a file.

    Args:
        owner: this process owns the engines. It creates the file, and no other server can use the file meanwhile.
        timeout_s: how long a call may take.

    Raises:
        ConfigError: the file can't be used.

    Attributes:
        database: for `run`, and its counts for metrics. failures: how many responses could not be stored.
    """

    def __init__(
        self,
        path: str,
        bounds: StoreBounds,
        owner: bool = True,
        clock: Callable[[], float] = time.time,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._lock = lock_file(path) if owner else None
        try:
            self.database = ResponseDatabase(path, bounds, owner, clock)
        except ConfigError:
            self._unlock()
            raise
        self.owner, self.failures = owner, 0
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, "stored-responses")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pending = 0
        self._failing = self._closed = False

    async def run(self, work: Callable[[ResponseDatabase], T]) -> T:
        """Return what `work` returns on the file's thread. Calls run in their order.

        Raises:
            StorageError: the file can't be read or written, or the disk does not answer.
        """
        if self._closed:
            raise self._make_error("the server ends")
        if self._pending >= MAX_PENDING:
            raise self._make_error(f"{self._pending} calls wait for the disk")
        self._pending += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, work, self.database)
        future.add_done_callback(self._finish)
        done, _ = await asyncio.wait({future}, timeout=self._timeout_s)
        if not done:
            raise self._make_error(f"the disk has not answered for {self._timeout_s:g} s")
        try:
            return future.result()
        except sqlite3.Error as error:
            raise self._make_error(take_first_line(error)) from error

    async def read(
        self, work: Callable[[Responses, str], bytes | None], user: str, argument: str, ended: bool
    ) -> bytes | None:
        """Return what `work` reads of the user's responses. ended: only of those that are over. See `run`."""
        return await self.run(lambda database: work(database.share_of(user, ended), argument))

    async def delete(self, user: str, id: str) -> None:
        """Delete a response that is about to be stored, if the file can be written."""
        with contextlib.suppress(StorageError):
            await self.run(lambda database: database.delete(user, id))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that no caller needs to wait for. `close` waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def report_success(self) -> None:
        """A response was stored."""
        if self._failing:
            self._failing = False
            log.warning("responses are stored again")

    def report_failure(self, error: StorageError) -> None:
        """A response could not be stored. The log gets the first of several in a row; the metric counts all."""
        self.failures += 1
        if not self._failing:
            self._failing = True
            log.error("a response could not be stored, and its answer says so (store: false): %s", error)

    async def clean(self) -> None:
        """Drop what has expired, in slices. Other calls run between them."""
        with contextlib.suppress(StorageError):  # the next call tries again
            while await self.run(ResponseDatabase.clean):
                pass

    async def close(self) -> None:
        """Finish what is being stored, and close the file. Idempotent."""
        if self._closed:
            return
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timeout_s)
        self._closed = True
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self.database.close)
        await asyncio.wait({closing}, timeout=self._timeout_s)
        self._thread.shutdown(wait=False)
        self._unlock()

    def _finish(self, future: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # else asyncio logs an error that nobody waited for

    def _make_error(self, reason: str) -> StorageError:
        return StorageError(f"the stored responses can't be read or written: {reason}")

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def lock_file(path: str) -> int | None:
    """Lock the file for this process, by a file beside it. Return the lock's descriptor; None if the file system has no
    locks.

    Raises:
        ConfigError: another server uses the file, the path is no plain file, or the folder can't be written.
    """
    real = os.path.realpath(path)  # a link names the same file
    if os.path.lexists(real) and (not os.path.isfile(real) or os.stat(real).st_nlink > 1):
        raise ConfigError(f"server.stored_responses_file: {path} can't be used: it must be a plain file with one name")
    try:
        descriptor = os.open(real + LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"server.stored_responses_file: {path} can't be used: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(f"server.stored_responses_file: {path} can't be used: another server uses it") from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
