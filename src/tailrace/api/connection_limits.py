"""How many connections a front end has, whose they are, and which one makes room for another (decision 0104).

A connection is a stranger's until the user of a request on it is known: by its API key, else by its address. Users may
have all places but LOBBY, which are kept for strangers. If the users' places are taken, the user who holds most makes
room. A user who would hold most with one more is refused instead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.api import error_handlers
from tailrace.api.connection_state import list_waits
from tailrace.api.request_head import RefusedError
from tailrace.api.user import USER, make_weigher, user_of
from tailrace.config import ServerConfig
from tailrace.errors import OverloadedError

LOBBY = 1 / 8  # of all places, but at least LOBBY_PLACES if users have as many
LOBBY_PLACES = 2  # so that a newcomer need not be the one that makes room for the next newcomer
LOOKED_AT = 64  # strangers, those that have waited longest, of which one makes room
STRANGERS = ""  # whose connections are that have no user yet
CLAIM = "tailrace.claim"  # where the ASGI scope has a function that says whose the connection is
MOST = "its user has most connections, and another request needs one"


class Droppable(Protocol):
    """A connection that may be closed to make room."""

    def drop(self, refusal: RefusedError) -> None:
        """Close it. refusal: the answer to a request that has none yet."""


@dataclass(slots=True)
class Holder:
    """The connections of one user: those without a complete request, the one that has waited longest first, and those
    that are being answered, the newest one last."""

    weight: int = 1
    waiting: dict[Droppable, None] = field(default_factory=dict)
    busy: dict[Droppable, None] = field(default_factory=dict)

    @property
    def load(self) -> float:
        """The number of connections, divided by the weight."""
        return len(self) / self.weight

    def __len__(self) -> int:
        return len(self.waiting) + len(self.busy)

    def remove(self, connection: Droppable) -> None:
        """Remove a connection, wherever it is."""
        self.waiting.pop(connection, None)
        self.busy.pop(connection, None)


class ConnectionLimits:
    """One per front end, shared by its connections.

    Attributes:
        waits: how long a connection may stay in each state.
    """

    def __init__(self, config: ServerConfig, max_files: int) -> None:
        self.config, self.waits = config, list_waits(config)
        self.limit = max(1, min(config.max_connections, max_files))
        lobby = max(min(LOBBY_PLACES, self.limit // 2), int(LOBBY * self.limit))
        self._most_of_users = max(1, self.limit - lobby)
        self._weigh = make_weigher(config)
        self._strangers = Holder()
        self._origins: dict[Droppable, str] = {}  # a stranger's address
        self._crowds: Counter[str] = Counter()  # strangers by address
        self._users: dict[str, Holder] = {}
        self._owners: dict[Droppable, str] = {}
        self._addresses: Counter[str] = Counter()
        self._open = 0

    def acquire(self, connection: Droppable, address: str) -> None:
        """Count one more connection. Where there is no room, a stranger is closed: of the address with the most
        strangers, the one that has waited longest.

        Raises:
            RefusedError: none can be closed, or this address has as many as it may. The connection is not counted then,
                and must not be released.
        """
        most = self.config.max_connections_per_address
        if most and self._addresses[address] >= most:
            raise RefusedError(429, f"more than {most} connections from one address")
        self._crowds[address] += 1
        if self._open >= self.limit and not self._drop_stranger():
            self._leave_crowd(address)
            raise RefusedError(503, f"all {self.limit} connections are in use")
        self._open += 1
        self._addresses[address] += 1
        self._owners[connection], self._origins[connection] = STRANGERS, address
        self._strangers.waiting[connection] = None

    def release(self, connection: Droppable, address: str) -> None:
        """Count one less."""
        self._open -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self._forget(connection)

    def note_waiting(self, connection: Droppable, waits: bool) -> None:
        """Note that a connection waits from now on for the rest of a request or for the next one, or no longer does."""
        owner = self._owners.get(connection)
        if owner is None:
            return
        holder = self._strangers if owner == STRANGERS else self._users[owner]
        if waits != (connection in holder.waiting):
            holder.remove(connection)
            (holder.waiting if waits else holder.busy)[connection] = None

    def claim(self, connection: Droppable, user: str) -> None:
        """Note whose a connection is.

        Raises:
            OverloadedError: the users' places are taken, and nobody holds more than this user would. The connection
                stays whose it was.
        """
        owner = self._owners.get(connection)
        if owner in (None, user):  # None: it has been dropped
            return
        if owner == STRANGERS and len(self._owners) - len(self._strangers) >= self._most_of_users:
            self._make_room(user)
        waits = connection in (self._strangers if owner == STRANGERS else self._users[owner]).waiting
        self._forget(connection)
        self._owners[connection] = user
        holder = self._users.setdefault(user, Holder(self._weigh(user)))
        (holder.waiting if waits else holder.busy)[connection] = None

    def _make_room(self, user: str) -> None:
        """Close a connection for this user's new one."""
        own = self._users.get(user) or Holder(self._weigh(user))
        most = max(self._users.values(), key=lambda holder: holder.load)
        if own.load >= most.load:
            if not self._drop_first(own.waiting):
                message = f"this user has {len(own)} of the {self._most_of_users} connections for all users"
                raise OverloadedError(message)
            return
        if self._drop_first(most.waiting):
            return
        waiting = [holder for holder in self._users.values() if holder.waiting]
        fair = (len(most) - 1) / most.weight >= (len(own) + 1) / own.weight
        # Many with one slow request each must not end the requests of one who has a few.
        if waiting and (not fair or sum(len(holder.waiting) for holder in waiting) >= len(most)):
            self._drop_first(max(waiting, key=lambda holder: holder.load).waiting)
        elif fair:
            self._drop(next(reversed(most.busy)))
        else:
            raise OverloadedError(f"all {self._most_of_users} connections for users are in use")

    def _drop_stranger(self) -> bool:
        """Close a stranger. Return whether there is one."""
        waiting = islice(self._strangers.waiting or self._strangers.busy, LOOKED_AT)
        found = max(waiting, key=lambda stranger: self._crowds[self._origins[stranger]], default=None)
        if found is not None:
            self._drop(found, "another connection needs the place of this one, whose user is not known yet")
        return found is not None

    def _drop_first(self, connections: dict[Droppable, None]) -> bool:
        """Close the first one. Return whether there is one."""
        for connection in connections:
            self._drop(connection)
            return True
        return False

    def _drop(self, connection: Droppable, why: str = MOST) -> None:
        self._forget(connection)
        connection.drop(RefusedError(429, why))

    def _forget(self, connection: Droppable) -> None:
        """Forget whose a connection is."""
        owner = self._owners.pop(connection, None)
        if owner is None:
            return
        holder = self._strangers if owner == STRANGERS else self._users[owner]
        holder.remove(connection)
        if owner == STRANGERS:
            self._leave_crowd(self._origins.pop(connection))
        elif not holder:
            del self._users[owner]

    def _leave_crowd(self, address: str) -> None:
        self._crowds[address] -= 1
        if not self._crowds[address]:
            del self._crowds[address]


class ClaimedConnections:
    """The middleware that tells the limits whose connection a request came on.

    Args:
        keyed: users have API keys. So a request without a known key is a stranger's.
    """

    def __init__(self, app: ASGIApp, keyed: bool) -> None:
        self._app, self._keyed = app, keyed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        claim = scope.pop(CLAIM, None)  # which refers to the connection
        if claim is None or (self._keyed and USER not in scope):
            return await self._app(scope, receive, send)
        try:
            claim(user_of(scope))
        except OverloadedError as error:
            response = error_handlers.error_response(scope, error)
            response.headers["connection"] = "close"
            return await response(scope, receive, send)
        await self._app(scope, receive, send)
