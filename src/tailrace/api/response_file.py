"""The file of stored responses, on a thread of its own: the event loop never waits for a disk (decision 0094). Users
take turns by the time that their calls take (decision 0096)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tailrace.api.response_database import ResponseDatabase, make_config_error
from tailrace.api.response_store import Responses, StoreBounds
from tailrace.base.fair_line import Weigh, count_down, may_wait, weigh_equally
from tailrace.base.fair_threads import FairThreads
from tailrace.errors import ConfigError, StorageError, take_first_line

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0  # after which a disk counts as broken
MAX_PENDING = 1000  # reads that wait for the disk, and writes
LOCK = "-lock"  # the end of the lock's name, as SQLite's -wal and -shm

T = TypeVar("T")


class ResponseFile:
    """The stored responses of all front ends, in a file.

    Args:
        owner: this process owns the engines. It creates the file, and no other server can use the file meanwhile.
        timeout_s: how long a call may take. weigh: returns a user's weight.

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
        weigh: Weigh = weigh_equally,
    ) -> None:
        self._lock = FileLock(path) if owner else None
        try:
            self.database = ResponseDatabase(path, bounds, owner, clock)
        except ConfigError:
            self.unlock()
            raise
        self.owner, self.failures = owner, 0
        self._timeout_s = timeout_s
        self._thread = FairThreads(1, "stored-responses")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reads, self._writes = Counter[str](), Counter[str]()  # calls that wait, by user
        self._weigh = weigh
        self._failing = self._closed = False

    async def run(self, work: Callable[[ResponseDatabase], T], user: str = "") -> T:
        """Return what `work`, which writes for a user, returns on the file's thread. A user's writes run in their order
        and before the user's reads. "": the server's own.

        Raises:
            StorageError: the file can't be read or written, or the disk does not answer.
        """
        return await self._run(work, user, self._writes)

    async def read(
        self, work: Callable[[Responses, str], bytes | None], user: str, argument: str, ended: bool
    ) -> bytes | None:
        """Return what `work` reads of the user's responses. ended: only of those that are over. See `run`."""
        return await self._run(lambda database: work(database.share_of(user, ended), argument), user, self._reads)

    async def _run(self, work: Callable[[ResponseDatabase], T], user: str, waiting: Counter[str]) -> T:
        if self._closed:
            raise self._make_error("the server ends")
        if not may_wait(waiting, user, MAX_PENDING, self._weigh):
            raise self._make_error("too many calls wait for the disk")
        waiting[user] += 1
        urgent = waiting is self._writes
        call = self._thread.submit(user, partial(work, self.database), urgent, self._weigh(user))
        future = asyncio.wrap_future(call)
        future.add_done_callback(lambda done: finish_call(done, waiting, user))
        try:
            done, _ = await asyncio.wait({future}, timeout=self._timeout_s)
        finally:
            if waiting is self._reads:  # nobody waits for it any more
                future.cancel()
        if future.cancelled() and self._closed:
            raise self._make_error("the server ends")
        if not done:
            raise self._make_error(f"the disk has not answered for {self._timeout_s:g} s")
        try:
            return future.result()
        except sqlite3.Error as error:
            raise self._make_error(take_first_line(error)) from error

    async def delete(self, user: str, id: str) -> None:
        """Delete a response that is about to be stored, if the file can be written."""
        with contextlib.suppress(StorageError):
            await self.run(lambda database: database.delete(user, id), user)

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
        self._thread.cancel_waiting()
        await asyncio.wait({asyncio.wrap_future(self._thread.submit("", self.database.close))}, timeout=self._timeout_s)
        self.unlock()

    def _make_error(self, reason: str) -> StorageError:
        return StorageError(f"the stored responses can't be read or written: {reason}")

    def unlock(self) -> None:
        """Let other servers use the file. Idempotent."""
        if self._lock is not None:
            self._lock.release()


def finish_call(call: asyncio.Future[Any], waiting: Counter[str], user: str) -> None:
    """Free the place of a call that has ended."""
    count_down(waiting, user)
    if not call.cancelled():
        call.exception()  # else asyncio logs an error that nobody waited for


class FileLock:
    """A lock of this process on a file, by a file beside it, which is deleted at the end. A file system without locks
    has none.

    Raises:
        ConfigError: another server uses the file, the path is no plain file, or the folder can't be written.
    """

    def __init__(self, path: str) -> None:
        real = os.path.realpath(path)  # a link names the same file
        if os.path.lexists(real) and (not os.path.isfile(real) or os.stat(real).st_nlink > 1):
            raise make_config_error(path, "it must be a plain file with one name")
        self._path = real + LOCK
        try:
            while not self._lock(descriptor := self._open()):  # its owner has just deleted it
                pass
        except BlockingIOError:
            raise make_config_error(path, "another server uses it") from None
        except OSError as error:
            raise make_config_error(path, str(error.strerror)) from error
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Delete the file, and release the lock. Idempotent."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        return os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def _lock(self, descriptor: int) -> bool:
        """Lock the file. Return False if it was deleted meanwhile."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:  # no locks
            return True
        if os.path.exists(self._path) and os.path.samestat(os.stat(self._path), os.fstat(descriptor)):
            return True
        os.close(descriptor)
        return False
