"""Responses stored for retrieval, in a share per user. Bounded in number, bytes and age.

This store is the memory of one front end. response_database.py keeps the same in a file.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from tailrace.api.schema.responses import ResponseObject
from tailrace.api.stored import OutputOrigin, Stored, find_output_item, make_stored
from tailrace.config import ServerConfig

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20
DAY_S = 86_400.0


class StoreBounds(NamedTuple):
    """The bounds of a store: responses of one user, bytes of all users, seconds since a response began."""

    max_responses: int = MAX_RESPONSES
    max_bytes: int = MAX_BYTES
    max_age_s: float = math.inf

    def oldest(self, now: float) -> float:
        """Return the time at which responses that expire now began."""
        return now - self.max_age_s


def make_bounds(config: ServerConfig) -> StoreBounds:
    """Return the bounds that the operator set."""
    days = config.stored_responses_days
    return StoreBounds(MAX_RESPONSES, config.stored_responses_mib << 20, days * DAY_S if days else math.inf)


class Responses(Protocol):
    """The stored responses of one user, wherever they are."""

    def find(self, id: str) -> Stored | None:
        """Return the stored response, and count it as used; None if it is not stored (any more)."""
        ...

    def find_item(self, id: str) -> bytes | None:
        """Return an item of a stored output as JSON; None if it is not stored (any more)."""
        ...


class ResponseStore:
    """The stored responses of all users, in one share per user. One per front end.

    A user has at most `max_responses`. If all users together have more than `max_bytes`, the largest share drops its
    least recently used response. So a user with at most an equal part of the bytes loses no response to other users.
    A response that is older than `max_age_s` is not found. `expire` drops it.
    """

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        max_age_s: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.bounds, self.clock = StoreBounds(max_responses, max_bytes, max_age_s), clock
        self._known: WeakValueDictionary[str, ResponseShare] = WeakValueDictionary()
        self._filled: dict[str, ResponseShare] = {}  # keeps the shares that hold a response
        self.ages: OrderedDict[tuple[str, str], float] = OrderedDict()  # user and id → created, about the oldest first
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.ages)

    def share_of(self, user: str) -> ResponseShare:
        """Return the share of this user, which may be empty."""
        share = self._known.get(user)
        if share is None:
            share = self._known[user] = ResponseShare(self, user)
        return share

    def is_expired(self, created: float) -> bool:
        """Return whether a response that began then is too old."""
        return created <= self.bounds.oldest(self.clock())

    def expire(self, most: int) -> None:
        """Drop responses that are too old, at most so many."""
        expired = [key for key, created in islice(self.ages.items(), most) if self.is_expired(created)]
        for user, id in expired:
            self._filled[user].discard(id)

    def count_bytes(self, share: ResponseShare, change: int) -> None:
        """Add a change to the bytes of a share that has changed."""
        share.bytes += change
        self.bytes += change
        if len(share):
            self._filled[share.user] = share
        else:
            self._filled.pop(share.user, None)

    def trim(self) -> None:
        """Drop what is beyond the limit of all users together."""
        while self.bytes > self.bounds.max_bytes:
            max(self._filled.values(), key=lambda filled: (filled.bytes, filled.user)).drop_oldest()


class ResponseShare:
    """The stored responses of one user, the least recently used first."""

    def __init__(self, store: ResponseStore, user: str) -> None:
        self.user, self.bytes = user, 0
        self._store = store
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._of_item: dict[str, str] = {}  # the id of an output's item → the id of its response
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, id: str) -> bool:
        return id in self._stored

    def put(
        self,
        response: ResponseObject,
        messages: list[dict[str, Any]],
        inputs: int = 0,
        streamed: bool = False,
        origin: OutputOrigin | None = None,
    ) -> None:
        """Store the current response without its records. It replaces an earlier state, whose events stay. inputs: see
        Stored."""
        before = self._stored.get(response.id)
        frames = ([] if streamed else None) if before is None else before.frames
        created = self._store.clock() if before is None else before.created
        self.put_entry(response.id, make_stored(response, messages, inputs, frames, origin, created))

    def put_entry(self, id: str, entry: Stored) -> None:
        """Store an entry. It replaces one of the same id."""
        self.discard(id)
        if len(self) >= self._store.bounds.max_responses:
            self.drop_oldest()
        self._stored[id] = entry
        self._store.ages[self.user, id] = entry.created
        self._of_item |= dict.fromkeys(entry.items, id)
        self._store.count_bytes(self, entry.size)
        self._store.trim()

    def record(self, id: str, frame: bytes) -> None:
        """Add an event, if the response is stored and was streamed."""
        entry = self._stored.get(id)
        if entry is not None and entry.frames is not None:
            entry.frames.append(frame)
            self._store.count_bytes(self, len(frame))
            self._store.trim()
            self._wake_waiters(id)

    async def beyond(self, id: str, number: int) -> None:
        """Wait until the stream of the response has more than `number` events, or it is not stored (any more)."""
        while (entry := self._stored.get(id)) is not None and len(entry.frames or ()) <= number:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(id, set())
            waiting.add(change)
            try:
                await change
            finally:
                waiting.discard(change)

    def _wake_waiters(self, id: str) -> None:
        for change in self._waiting.pop(id, ()):
            if not change.done():
                change.set_result(None)

    def find(self, id: str) -> Stored | None:
        """Return the stored response, and count it as used; None if it is not stored (any more)."""
        entry = self._stored.get(id)
        if entry is None or self._store.is_expired(entry.created):
            self.discard(id)
            return None
        self._stored.move_to_end(id)
        return entry

    def discard(self, id: str) -> None:
        """Drop it, if it is stored."""
        entry = self._stored.pop(id, None)
        if entry is not None:
            for item in entry.items:
                self._of_item.pop(item, None)
            del self._store.ages[self.user, id]
            self._store.count_bytes(self, -entry.size)
            self._wake_waiters(id)

    def drop_oldest(self) -> None:
        """Drop the least recently used response."""
        self.discard(next(iter(self._stored)))

    def find_item(self, id: str) -> bytes | None:
        """Return an item of a stored output as JSON; None if it is not stored (any more)."""
        stored = self.find(self._of_item.get(id, ""))
        return None if stored is None else find_output_item(stored.body, id)
