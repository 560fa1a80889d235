"""How many connections a front end has, from which addresses, and which one makes room for another."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from tailrace.api.connection_state import list_waits
from tailrace.api.request_head import RefusedError
from tailrace.config import ServerConfig


class Droppable(Protocol):
    """A connection that may be closed to make room."""

    def drop(self) -> None:
        """Close it."""


class ConnectionLimits:
    """One per front end, shared by its connections.

    Attributes:
        waits: how long a connection may stay in each state.
        waiting: connections without a complete request; the one that has waited longest comes first.
    """

    def __init__(self, config: ServerConfig, max_files: int) -> None:
        self.config, self.waits = config, list_waits(config)
        self.limit = max(1, min(config.max_connections, max_files))
        self.waiting: dict[Droppable, None] = {}
        self._addresses: Counter[str] = Counter()
        self._open = 0

    def acquire(self, address: str) -> None:
        """Count one more connection. Where there is no room, the one that has waited longest is closed.

        Raises:
            RefusedError: none can be closed, or this address has as many as it may. The connection is not counted then,
                and must not be released.
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

    def release(self, address: str) -> None:
        """Count one less."""
        self._open -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
