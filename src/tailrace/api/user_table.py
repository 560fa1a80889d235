"""Memory that all front ends of a server map: what each user has used and runs, and which users have metrics of their
own (decision 0091). Knows no limit.

A lock of the operating system guards the memory. It is free again as soon as its owner dies. Use it as a context:
`with table:` around each sequence of calls. Places of users:

- A user has one of WINDOW neighbouring places. A secret decides where, so no client can choose its neighbours.
- A place that is as if its user had never come may be given to another user.
- If there is no such place, the user who has the most left loses its place. That user is then as good as new, which a
  client without a key can have at any time by another address. A user with running requests keeps its place.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import tempfile
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from tailrace.config import ServerConfig

MIN_PLACES = 65_536
PER_CONNECTION = 4  # places: if each connection runs a request of another user, 16 neighbours all do with about 1e-7
WINDOW = 16
ID_BYTES = 16  # of user.make_user_id
HEADER = Struct("<16sI")  # the secret; how many users have metrics of their own
USED = Struct("<16sqqqq")  # the user's id, and Used
COUNT = Struct("<I")


class Used(NamedTuple):
    """What a user has used, at a time in microseconds of the clock that all processes share.

    requests, tokens: in units of rate_bucket.py. idle_us: when nothing of it is left.
    """

    at_us: int = 0
    requests: int = 0
    tokens: int = 0
    idle_us: int = 0


class TableLayout(NamedTuple):
    """How many front ends share the memory, how many users may have metrics of their own, and the places of users."""

    front_ends: int
    own_metrics: int
    places: int = MIN_PLACES

    @classmethod
    def of(cls, config: ServerConfig) -> TableLayout:
        """Return the layout of a server's table."""
        places = max(MIN_PLACES, PER_CONNECTION * config.max_connections * config.front_ends)
        return cls(config.front_ends, config.metrics_by_user, places)

    @property
    def used(self) -> int:
        """Where the used amounts begin."""
        return HEADER.size + ID_BYTES * self.own_metrics

    def running(self, front_end: int) -> int:
        """Where a front end's numbers of running requests begin."""
        places = self.places + WINDOW  # the last ones are neighbours alone
        return self.used + USED.size * places + COUNT.size * places * front_end

    @property
    def size(self) -> int:
        """Return the size in bytes. Only used pages take memory."""
        return self.running(self.front_ends)


def make_shared_file(layout: TableLayout) -> int:
    """Return the descriptor of a file without a name that holds an empty table, for `UserTable` in each front end."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("tailrace-users")
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
        if hasattr(os, "posix_fallocate"):  # a hole would get its place on a full disk too late
            os.posix_fallocate(file, 0, layout.size)
    os.ftruncate(file, layout.size)
    os.pwrite(file, secrets.token_bytes(16), 0)
    return file


class UserTable:
    """The table as one front end sees it.

    Args:
        file: see make_shared_file; None: a table of this process alone, without a lock.
        front_end: the number of this front end, from 0.
    """

    def __init__(self, layout: TableLayout, file: int | None = None, front_end: int = 0) -> None:
        self._layout, self._file, self._front_end = layout, file, front_end
        self._memory = mmap.mmap(-1 if file is None else file, layout.size)
        if file is None:
            self._memory[:ID_BYTES] = secrets.token_bytes(ID_BYTES)
        self._secret, _ = HEADER.unpack_from(self._memory)

    def __enter__(self) -> Self:
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def find(self, user: str) -> int | None:
        """Return the place of the user with this id, if the user has one."""
        id = bytes.fromhex(user)
        begin = self._at(self._first_place(id))
        at = self._memory.find(id, begin, begin + USED.size * WINDOW)
        return None if at < 0 else (at - self._layout.used) // USED.size

    def claim(self, user: str, now_us: int) -> int | None:
        """Return the place of the user, a new one if the user has none. None: all neighbours have running requests."""
        if (place := self.find(user)) is not None:
            return place
        id = bytes.fromhex(user)
        first = self._first_place(id)
        free = [place for place in range(first, first + WINDOW) if not self.running(place)]
        if not free:
            return None
        place = min(free, key=lambda place: max(0, self.load(place).idle_us - now_us))
        USED.pack_into(self._memory, self._at(place), id, *Used())
        return place

    def load(self, place: int) -> Used:
        """Return what the user at a place has used."""
        return Used(*USED.unpack_from(self._memory, self._at(place))[1:])

    def store(self, place: int, used: Used) -> None:
        """Store what the user at a place has used."""
        USED.pack_into(self._memory, self._at(place), self._id_at(place), *used)

    def running(self, place: int) -> int:
        """Return how many requests of the user at a place run, in all front ends."""
        layout = self._layout
        return sum(
            COUNT.unpack_from(self._memory, layout.running(front_end) + COUNT.size * place)[0]
            for front_end in range(layout.front_ends)
        )

    def add_running(self, place: int, change: int) -> None:
        """Count requests of the user at a place that begin (1) or have ended (-1) in this front end."""
        at = self._layout.running(self._front_end) + COUNT.size * place
        COUNT.pack_into(self._memory, at, COUNT.unpack_from(self._memory, at)[0] + change)

    def forget_running(self, front_end: int) -> None:
        """Drop the counts of a front end that has died."""
        begin, end = self._layout.running(front_end), self._layout.running(front_end + 1)
        self._memory[begin:end] = bytes(end - begin)

    def list_own_metrics(self, begin: int = 0) -> list[str]:
        """Return the ids of the users with metrics of their own, from a number on."""
        _, count = HEADER.unpack_from(self._memory)
        places = (HEADER.size + ID_BYTES * number for number in range(begin, count))
        return [self._memory[at : at + ID_BYTES].hex() for at in places]

    def add_own_metrics(self, user: str) -> None:
        """Give the user metrics of its own. There must be room."""
        _, count = HEADER.unpack_from(self._memory)
        at = HEADER.size + ID_BYTES * count
        self._memory[at : at + ID_BYTES] = bytes.fromhex(user)
        HEADER.pack_into(self._memory, 0, self._secret, count + 1)

    def _first_place(self, id: bytes) -> int:
        return int.from_bytes(blake2b(id, key=self._secret, digest_size=8).digest()) % self._layout.places

    def _at(self, place: int) -> int:
        return self._layout.used + USED.size * place

    def _id_at(self, place: int) -> bytes:
        at = self._at(place)
        return self._memory[at : at + ID_BYTES]
