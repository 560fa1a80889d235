"""Stored responses in an SQLite file, with the interface and the bounds of the memory's store (response_store.py).

This module blocks on the disk and knows no event loop: response_file.py runs it on a thread. Several processes may have
one file open. A response has a row from its first token on. Until its end the row holds the state that remains if the
server ends now, so no row needs a repair afterwards.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from tailrace.api.database_file import connect_file, create_private_file, make_config_error
from tailrace.api.response_store import StoreBounds
from tailrace.api.stored import Stored, find_output_item
from tailrace.errors import take_first_line

SLICE = 100  # responses that one cleanup drops
FIND = """
SELECT row, body, messages, inputs, frames, origin, created FROM responses JOIN contents USING (row)
WHERE user = ? AND id = ? AND created > ? AND ended >= ?
"""
NEXT_USE = "(SELECT coalesce(max(used), 0) + 1 FROM responses WHERE user = :user)"
OLDEST = "(SELECT row FROM responses WHERE user = :user ORDER BY used LIMIT 1)"
LARGEST = "SELECT user FROM shares ORDER BY bytes DESC, user DESC LIMIT 1"


class ResponseDatabase:
    """An open file. Each method is one transaction, and raises sqlite3.Error if the file can't be read or written.

    Args:
        owner: create the file if it does not exist, and check the whole file.

    Raises:
        ConfigError: the file can't be used.
    """

    def __init__(
        self, path: str, bounds: StoreBounds, owner: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self._bounds, self._clock = bounds, clock
        self._erases = False  # the log may hold what was dropped
        self.responses = self.bytes = 0  # of all users, when this process last looked
        try:
            if owner:
                create_private_file(path)
            self._connection = connect_file(path, owner)
            self._count()
        except (OSError, sqlite3.Error, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else take_first_line(error)
            raise make_config_error(path, reason) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def share_of(self, user: str, ended: bool = False) -> DatabaseShare:
        """Return the user's responses. ended: only those that are over."""
        return DatabaseShare(self, user, ended)

    def add(self, user: str, id: str, stored: Stored, ended: int = 0) -> None:
        """Store a response that has begun, as it is if the server ends now; or, if it has ended, a conversation."""
        with self._write() as run:
            self._expire(SLICE)
            if run(
                "SELECT responses FROM shares WHERE user = :user AND responses >= :most",
                user,
                most=self._bounds.max_responses,
            ):
                self._drop(OLDEST, user)
            run(
                f"INSERT INTO responses (user, id, created, ended, used, size) "
                f"VALUES (:user, :id, :created, 0, {NEXT_USE}, 0)",
                user,
                id=id,
                created=stored.created,
            )
            self._write_contents(user, id, stored, ended)

    def change(self, user: str, id: str, change: Callable[[Stored], Stored | None]) -> bytes | None:
        """Replace a conversation with what `change` returns, and return its body: b"" if `change` returns None, None if
        the conversation is not stored."""
        with self._write() as run:
            found = self._find(user, id, False)
            if found is None:
                return None
            row, body, messages, inputs, frames, origin, created = found
            changed = change(Stored(body, messages, inputs, msgspec.msgpack.decode(frames), origin, created=created))
            if changed is None:
                return b""
            run(
                f"UPDATE responses SET created = :created, used = {NEXT_USE} WHERE row = :row",
                user,
                row=row,
                created=changed.created,
            )
            self._write_row(row, changed, 1)
            return changed.body

    def end(self, user: str, id: str, stored: Stored) -> bool:
        """Store the end of a response that was added. Return whether the response is stored: it may have been deleted
        or dropped."""
        with self._write():
            return self._write_contents(user, id, stored, 1)

    def delete(self, user: str, id: str) -> bool:
        """Delete a response. Return whether it was stored, and has not expired."""
        with self._write():
            found = bool(self._find(user, id, False))
            self._drop("(SELECT row FROM responses WHERE user = :user AND id = :id)", user, id=id)
            return found

    def find(self, user: str, id: str, ended: bool) -> Stored | None:
        """Return a stored response, and count it as used."""
        found = self._find(user, id, ended)
        if found is None:
            return None
        row, body, messages, inputs, frames, origin, created = found
        with suppress(sqlite3.Error), self._write() as run:  # a response can be read from a full disk
            run(f"UPDATE responses SET used = {NEXT_USE} WHERE row = :row", user, row=row)
        return Stored(body, messages, inputs, msgspec.msgpack.decode(frames), origin, created=created)

    def find_response_of(self, user: str, item: str) -> str | None:
        """Return the id of the response whose output has this item."""
        rows = self._connection.execute(
            "SELECT id FROM items JOIN responses USING (row) WHERE item = ? AND user = ?", (item, user)
        )
        return next((id for (id,) in rows), None)

    def clean(self) -> bool:
        """Drop expired responses and those beyond the bound, a slice of each. Return whether more may be left."""
        with self._write():
            left = self._expire(SLICE) == SLICE
            left |= self._trim(SLICE) == SLICE
        if self._erases and not left:  # what was dropped leaves the log too
            busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._erases = bool(busy)
        return left

    @contextmanager
    def _write(self) -> Iterator[Callable[..., list[Any]]]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield lambda text, user, **values: self._connection.execute(text, values | {"user": user}).fetchall()
            self._count()
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _write_contents(self, user: str, id: str, stored: Stored, ended: int) -> bool:
        execute = self._connection.execute
        found = execute("SELECT row FROM responses WHERE user = ? AND id = ? AND ended = 0", (user, id)).fetchone()
        if found is None:
            return False
        return self._write_row(found[0], stored, ended)

    def _write_row(self, row: int, stored: Stored, ended: int) -> bool:
        execute = self._connection.execute
        frames = msgspec.msgpack.encode(stored.frames)
        execute(
            "REPLACE INTO contents VALUES (?, ?, ?, ?, ?, ?)",
            (row, stored.body, stored.messages, stored.inputs, frames, stored.origin),
        )
        self._connection.executemany("REPLACE INTO items VALUES (?, ?)", [(item, row) for item in stored.items])
        execute("UPDATE responses SET size = ?, ended = ? WHERE row = ?", (stored.size, ended, row))
        self._trim()
        return execute("SELECT 1 FROM responses WHERE row = ?", (row,)).fetchone() is not None

    def _find(self, user: str, id: str, ended: bool) -> tuple[Any, ...] | None:
        return self._connection.execute(FIND, (user, id, self._bounds.oldest(self._clock()), ended)).fetchone()

    def _drop(self, rows: str, user: str = "", **values: Any) -> int:
        text = f"DELETE FROM responses WHERE row IN {rows}"
        dropped = self._connection.execute(text, values | {"user": user}).rowcount
        self._erases |= dropped > 0
        return dropped

    def _expire(self, most: int) -> int:
        oldest = self._bounds.oldest(self._clock())
        rows = "(SELECT row FROM responses WHERE created <= :oldest ORDER BY created LIMIT :most)"
        return self._drop(rows, oldest=oldest, most=most)

    def _trim(self, most: int = -1) -> int:
        """Drop what is beyond the limit of all users together; -1: all of it. Return how many responses."""
        dropped = 0
        while dropped != most and self._count()[1] > self._bounds.max_bytes:
            [user] = self._connection.execute(LARGEST).fetchone()
            dropped += self._drop(OLDEST, user)
        return dropped

    def _count(self) -> tuple[int, int]:
        query = "SELECT coalesce(sum(responses), 0), coalesce(sum(bytes), 0) FROM shares"
        self.responses, self.bytes = self._connection.execute(query).fetchone()
        return self.responses, self.bytes


class DatabaseShare:
    """The responses of one user in a file. See ResponseShare."""

    def __init__(self, database: ResponseDatabase, user: str, ended: bool) -> None:
        self._database, self._user, self._ended = database, user, ended

    def find(self, id: str) -> Stored | None:
        """Return the stored response, and count it as used; None if it is not stored (any more)."""
        return self._database.find(self._user, id, self._ended)

    def find_item(self, id: str) -> bytes | None:
        """Return an item of a stored output as JSON; None if it is not stored (any more)."""
        response = self._database.find_response_of(self._user, id)
        stored = None if response is None else self.find(response)
        return None if stored is None else find_output_item(stored.body, id)
