"""Compiled grammars and refusals of the last requests. Each belongs to the user it was made for."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class UserCache(Generic[T]):
    """The values used last, limited in number and in bytes (as far as their sizes are known).

    Beyond a limit, the user with most loses the least recently used value. So a user with at most an equal part of the
    limits loses no value to other users.
    """

    def __init__(self, max_entries: int, max_bytes: float = math.inf) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[bytes, tuple[T, int, str]] = OrderedDict()

    def get(self, key: bytes) -> T | None:
        if (entry := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, value: T, size: int, user: str) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (value, size, user)
        while len(self._entries) > 1:
            numbers, sizes = Counter[str](), Counter[str]()
            for _, size, user in self._entries.values():
                numbers[user] += 1
                sizes[user] += size
            if len(self._entries) > self._max_entries:
                self._remove_oldest(numbers)
            elif sizes.total() > self._max_bytes:
                self._remove_oldest(sizes)
            else:
                return

    def _remove_oldest(self, shares: Counter[str]) -> None:
        """Remove the least recently used value of the user with the largest share."""
        [(largest, _)] = shares.most_common(1)
        del self._entries[next(key for key, entry in self._entries.items() if entry[2] == largest)]


class RefusedGrammars:
    """Why grammars that took too much were refused; remembered for a while."""

    def __init__(self, max_entries: int, seconds: float) -> None:
        self._seconds = seconds
        self._kept = UserCache[tuple[str, float]](max_entries)

    def get(self, key: bytes) -> str | None:
        text, until = self._kept.get(key) or (None, 0.0)
        return text if time.monotonic() < until else None

    def put(self, key: bytes, text: str, user: str) -> None:
        self._kept.put(key, (text, time.monotonic() + self._seconds), 0, user)
