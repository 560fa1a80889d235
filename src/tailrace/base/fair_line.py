"""Whose work is next: users take turns by the time that their work has taken, divided by their weights. And whose work
may wait. Pure data, without clocks and threads.

This is start-time fair queueing. A user who comes begins with the time of the user who was served last, so nobody saves
turns. A user who leaves with more than that still has more when coming back (decision 0096).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from tailrace.errors import OverloadedError

T = TypeVar("T")
Weigh = Callable[[str], int]  # a user's weight
Turn = tuple[float, int, int, str]  # used_s, running pieces, arrival of the turn, user

MAX_DEBTORS = 256  # users without work here whose time is remembered
MAX_STALE = 64  # turns that no longer hold, beyond one per user


@dataclass(slots=True, eq=False)
class UserWork(Generic[T]):
    """What a user waits for and runs.

    - used_s: comparable between users: the time, divided by the weight.
    - lines: urgent pieces, and the others, each in order of arrival.
    - turn: the place among the users who may be next; None: nothing waits, or as much runs as may.
    """

    used_s: float
    lines: tuple[OrderedDict[T, None], OrderedDict[T, None]] = field(
        default_factory=lambda: (OrderedDict(), OrderedDict())
    )
    running: int = 0
    weight: int = 1
    turn: Turn | None = None

    @property
    def waits(self) -> bool:
        return bool(self.lines[0] or self.lines[1])


class FairLine(Generic[T]):
    """Pieces of work that wait, by user. Call `finish` for each piece that `take` returns.

    Args:
        per_user: pieces of a user that may run at once.

    Attributes:
        size: number of pieces that wait or run.
    """

    def __init__(self, per_user: int = 1) -> None:
        self._per_user = per_user
        self._users: dict[str, UserWork[T]] = {}
        self._debts: OrderedDict[str, float] = OrderedDict()
        self._turns: list[Turn] = []  # a heap; a turn that is no user's `turn` any more does not hold
        self._arrivals = count()
        self._served_s = 0.0  # the greatest used_s with which a piece was taken
        self.size = 0

    def add(self, user: str, piece: T, urgent: bool = False, weight: int = 1) -> None:
        """Add a piece. urgent: it comes before the user's other pieces. weight: the user's from now on."""
        own = self._users.get(user)
        if own is None:
            own = self._users[user] = UserWork(max(self._debts.pop(user, 0.0), self._served_s))
        own.weight = weight
        own.lines[not urgent][piece] = None
        self.size += 1
        if own.turn is None:
            self._queue_turn(user, own)

    def discard(self, user: str, piece: T) -> None:
        """Drop a piece, if it waits."""
        own = self._users.get(user)
        line = own and next((line for line in own.lines if piece in line), None)
        if own is None or line is None:
            return
        del line[piece]
        self.size -= 1
        self._leave(user, own)

    def take(self) -> tuple[str, T] | None:
        """Return the next piece and its user; None if no piece may run now."""
        while self._turns:
            turn = heappop(self._turns)
            user = turn[-1]
            own = self._users.get(user)
            if own is None or own.turn is not turn:
                continue
            piece, _ = own.lines[not own.lines[0]].popitem(last=False)
            own.running += 1
            self._served_s = max(self._served_s, own.used_s)
            self._queue_turn(user, own)
            return user, piece
        return None

    def finish(self, user: str, took_s: float) -> None:
        """A piece of the user has ended."""
        own = self._users[user]
        own.running -= 1
        own.used_s += took_s / own.weight
        self.size -= 1
        self._queue_turn(user, own)
        self._leave(user, own)

    def __iter__(self) -> Iterator[T]:
        """The pieces that wait."""
        for own in self._users.values():
            for line in own.lines:
                yield from line

    def _queue_turn(self, user: str, own: UserWork[T]) -> None:
        own.turn = None
        if not own.waits or own.running >= self._per_user:
            return
        own.turn = (own.used_s, own.running, next(self._arrivals), user)
        heappush(self._turns, own.turn)
        if len(self._turns) > 2 * len(self._users) + MAX_STALE:
            self._turns = [own.turn for own in self._users.values() if own.turn is not None]
            heapify(self._turns)

    def _leave(self, user: str, own: UserWork[T]) -> None:
        """Forget a user without work, except for a debt. Forget all if nobody has work."""
        if own.waits:
            return
        own.turn = None
        if own.running:
            return
        del self._users[user]
        if not self._users:
            self._debts.clear()
            self._turns.clear()
            self._served_s = 0.0
        elif own.used_s > self._served_s:
            self._debts[user] = own.used_s
            if len(self._debts) > MAX_DEBTORS:
                self._debts.popitem(last=False)


def weigh_equally(user: str) -> int:
    """Return the weight of any user where nobody has another."""
    return 1


def may_wait(waiting: Counter[str], user: str, most: int, weigh: Weigh) -> bool:
    """Return whether one more piece of the user may wait. `most` pieces may wait.

    Beyond `most` a user may still have a part of the places, by weight, and one at least, so a full line is full for
    those alone who fill it. No piece that waits already is refused for another one.
    """
    if waiting.total() < most:
        return True
    own = weigh(user)
    weights = own + sum(weigh(other) for other in waiting if other != user)
    return waiting[user] < max(min(1, most), most * own // weights)


def check_line(waiting: Counter[str], user: str, most: int, weigh: Weigh) -> None:
    """Check that one more request of the user may wait.

    Raises:
        OverloadedError: it may not. See may_wait.
    """
    if not may_wait(waiting, user, most, weigh):
        own, total = waiting[user], waiting.total()
        whose = f", {own} of them of this user" if own < total else ""
        raise OverloadedError(f"{total} requests are waiting{whose}; try again later")


def count_down(counter: Counter[str], user: str) -> None:
    """Subtract 1 from the user's count, and forget a count of 0."""
    counter[user] -= 1
    if not counter[user]:
        del counter[user]
