"""Compiled grammars and refusals of the last requests. Each belongs to the user it was made for."""

from __future__ import annotations

import time
from collections import OrderedDict

from tailrace.grammar.base import Compiled


class GrammarCache:
    """The grammars used last, limited in number and in bytes (as far as their sizes are known).

    Beyond a limit, the user with most loses the least recently used grammar. So a user with at most an equal part of
    the limits loses no grammar to other users.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[bytes, tuple[Compiled, int, str]] = OrderedDict()
        self._shares: dict[str, list[int]] = {}  # per user: number of entries, bytes

    def get(self, key: bytes) -> Compiled | None:
        if (entry := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, compiled: Compiled, size: int, user: str) -> None:
        self._remove(key)
        self._entries[key] = (compiled, size, user)
        share = self._shares.setdefault(user, [0, 0])
        share[0] += 1
        share[1] += size
        while len(self._entries) > 1:
            if len(self._entries) > self._max_entries:
                self._remove_oldest(0)
            elif sum(share[1] for share in self._shares.values()) > self._max_bytes:
                self._remove_oldest(1)
            else:
                return

    def _remove_oldest(self, unit: int) -> None:
        """Remove a grammar of the user with most entries (unit 0) or bytes (unit 1)."""
        largest = max(self._shares, key=lambda user: self._shares[user][unit])
        self._remove(next(key for key, entry in self._entries.items() if entry[2] == largest))

    def _remove(self, key: bytes) -> None:
        if (entry := self._entries.pop(key, None)) is None:
            return
        _, size, user = entry
        share = self._shares[user]
        share[0] -= 1
        share[1] -= size
        if not share[0]:
            del self._shares[user]


class RefusedGrammars:
    """Why grammars that took too much were refused; remembered for a while. Beyond the limit, the user with most
    refusals loses the oldest one."""

    def __init__(self, max_entries: int, seconds: float) -> None:
        self._max_entries, self._seconds = max_entries, seconds
        self._entries: dict[bytes, tuple[str, float, str]] = {}

    def get(self, key: bytes) -> str | None:
        text, until, _ = self._entries.get(key, (None, 0.0, ""))
        return text if time.monotonic() < until else None

    def put(self, key: bytes, text: str, user: str) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (text, time.monotonic() + self._seconds, user)
        if len(self._entries) > self._max_entries:
            users = [entry[2] for entry in self._entries.values()]
            largest = max(dict.fromkeys(users), key=users.count)
            del self._entries[next(key for key, entry in self._entries.items() if entry[2] == largest)]
