"""What the connections of one front end share: how many there are, of whom, and who would have to make room."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from tailrace.api.head import RefusedError
from tailrace.config import ServerConfig


class Waiting(Protocol):
    """A connection that could be closed."""

    def drop(self) -> None:
        """Close it."""


class Door:
    """What the connections of one front end share."""

    def __init__(self, config: ServerConfig, max_files: int) -> None:
        self.config = config
        self.limit = max(1, min(config.max_connections, max_files))
        self.waiting: dict[Waiting, None] = {}  # those without a complete request, the longest waiting first
        self._addresses: Counter[str] = Counter()
        self._open = 0

    def enter(self, address: str) -> None:
        """One more. Where all places are taken, the one that has waited longest makes room.

        Raises:
            RefusedError: nobody does, or this address has all that it may. It is not counted, and must not `leave`.
        """
        most = self.config.max_connections_per_address
        if most and self._addresses[address] >= most:
            raise RefusedError(429, f"more than {most} connections from one address")
        if self._open >= self.limit:
            if not self.waiting:
                raise RefusedError(503, f"all {self.limit} connections are in use")
            next(iter(self.waiting)).drop()
        self._open += 1
        self._addresses[address] += 1

    def leave(self, address: str) -> None:
        """One less."""
        self._open -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
