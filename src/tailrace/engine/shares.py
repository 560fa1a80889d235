"""Shares the engine between users: the virtual time of each user, and the order of users that follows from it.

A user's virtual time is the number of tokens that the user got: computed prompt tokens, and output tokens. Whoever has
the least comes next. This is start-time fair queueing (Goyal et al., 1996) of tokens, as in the virtual token counter
(Sheng et al., 2024, arXiv 2401.00588). A user's weight divides the tokens: with weight 3 a user gets three tokens where
a user with weight 1 gets one (decision 0097). The quotients are exact, so equal weights decide nothing.

A user who comes back gains nothing from the time away: the user starts with the least virtual time of all active users.
Nobody is more than LEAD tokens, divided by the weight, behind the user with the most, so nobody gets more than LEAD
tokens in a row. Tokens count only while somebody waits: whoever got more from an engine with room owes nothing. This
module knows no clock, no blocks and no slots. (Decision 0090.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import NamedTuple

from tailrace.base.fair_line import check_line, count_down
from tailrace.engine.sequence import Sequence

MOST_SERVICE = 256  # Tokens of a user's service that are kept for each of its requests.
MAX_DEBTORS = 256  # Users without requests whose debts are kept: the largest ones.
LEAD = 8192  # Tokens. Smaller ones forget sooner who got more.


class Share(NamedTuple):
    """What a user got. Smaller (tokens, turn) come first.

    - tokens: the virtual time: the tokens, each divided by the weight.
    - turn: the number of the user's last turn among all turns, which decides between equal virtual times.
    - service: output tokens that no preemption for another user has cost yet.
    - weight: the user's.
    """

    tokens: int | Fraction = 0
    turn: int = 0
    service: int = 0
    weight: int = 1

    def divide(self, tokens: int) -> int | Fraction:
        """Return the virtual time of this number of tokens."""
        return tokens if self.weight == 1 else Fraction(tokens, self.weight)

    def limit_lag(self, most: int | Fraction) -> Share:
        """Return the share, LEAD tokens behind the largest virtual time at most."""
        least = most - self.divide(LEAD)
        return self if self.tokens >= least else self._replace(tokens=least)


class Shares:
    """The shares of all users with requests, and the requests of each that wait for their first step.

    A user's debt, the virtual time beyond that of all active users, is kept until they have caught up. If no request is
    left, all is forgotten.
    """

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._active: dict[str, Share] = {}
        self._debts: dict[str, Share] = {}
        self._most: int | Fraction = 0
        self._least: int | Fraction = 0
        self._turn = 0

    def read(self) -> dict[str, Share]:
        """Return the shares of the users with requests."""
        return {user: share.limit_lag(self._most) for user, share in self._active.items()}

    @property
    def several(self) -> bool:
        """True if several users have requests."""
        return len(self._active) > 1

    def enter(self, user: str, weight: int = 1) -> None:
        """Note a new request of the user. The weight is the one that the user has from now on."""
        if user not in self._active:
            least = self._find_least()
            debt = self._debts.pop(user, Share())
            self._active[user] = debt if debt.tokens > least else Share(least)
        self._active[user] = self._active[user]._replace(weight=weight)
        self._requests[user] += 1
        self.waiting[user] += 1

    def begin(self, user: str) -> None:
        """Note that a request of the user no longer waits for its first step: it was admitted, or has ended."""
        count_down(self.waiting, user)

    def leave(self, user: str) -> None:
        """Note the end of a request of the user."""
        count_down(self._requests, user)
        if user in self._requests:
            return
        self._debts[user] = self._active.pop(user)._replace(service=0)
        if not self._active:
            self._debts, self._most, self._turn, self._least = {}, 0, 0, 0
            return
        least = self._find_least()
        if least > self._least or len(self._debts) > MAX_DEBTORS:
            self._least = least
            self._debts = {one: debt for one, debt in self._debts.items() if debt.tokens > least}
        if len(self._debts) > MAX_DEBTORS:
            del self._debts[min(self._debts, key=lambda one: self._debts[one])]

    def charge(self, user: str, tokens: int) -> None:
        """Add tokens to the user's virtual time."""
        share = self._active[user]
        total = share.limit_lag(self._most).tokens + share.divide(tokens)
        self._active[user] = share._replace(tokens=total)
        self._most = max(self._most, total)

    def add_output(self, user: str, tokens: int) -> None:
        """Charge output tokens, and count them as the user's service."""
        self.charge(user, tokens)
        share = self._active[user]
        most = MOST_SERVICE * self._requests[user]
        self._active[user] = share._replace(service=min(share.service + tokens, most))

    def spend_service(self, user: str, tokens: int) -> None:
        """Subtract what a preemption costs from the user's service."""
        share = self._active[user]
        self._active[user] = share._replace(service=max(0, share.service - tokens))

    def level(self) -> None:
        """Forget who got more: nobody waits."""
        if self.several:
            self._active = {user: share._replace(tokens=self._most) for user, share in self._active.items()}
        self._debts = {}

    def take_turn(self, user: str, tokens: int) -> None:
        """Charge prompt tokens, and make this turn the last one."""
        self._turn += 1
        self._active[user] = self._active[user]._replace(turn=self._turn)
        self.charge(user, tokens)

    def check_place(self, user: str, most: int, weight: int = 1) -> None:
        """Check that one more request of the user, who has this weight, may wait. `most` requests may wait.

        Raises:
            OverloadedError: it may not.
        """
        check_line(self.waiting, user, most, lambda one: weight if one == user else self._active[one].weight)

    def _find_least(self) -> int | Fraction:
        return min((share.tokens for share in self.read().values()), default=0)


def divide_slots(slots: int, shares: dict[str, Share]) -> dict[str, int]:
    """Return the whole number of slots that is each user's equal part, by weight."""
    weights = sum(share.weight for share in shares.values())
    return {user: slots * share.weight // weights for user, share in shares.items()}


def sort_by_share(running: list[Sequence], shares: dict[str, Share]) -> list[Sequence]:
    """Return sequences with the users' shares in front of the order of arrival: the last one is the first to yield.

    With one user the order stays.
    """
    return sorted(running, key=lambda sequence: (sequence.request.order[0], shares[sequence.user].tokens))


def take_turns(
    prefills: list[Sequence], waiting: Iterable[Sequence], shares: dict[str, Share], closed: set[str]
) -> Iterator[Sequence]:
    """Yield the sequences that want prompt tokens: the next one is of the user with the smallest share.

    A smaller priority comes first among users. Each user's own order is: running prefills, then waiting sequences,
    until the user is closed. The caller changes `shares` and `closed` between two sequences.
    """
    if len(shares) < 2:
        for sequence in chain(prefills, waiting):
            yield sequence
            if closed:
                return
        return
    lines: dict[str, list[Sequence]] = {}
    for sequence in chain(prefills, waiting):
        lines.setdefault(sequence.user, []).append(sequence)
    rests = {user: iter(line) for user, line in lines.items()}
    heads = [make_turn(next(rest), shares) for rest in rests.values()]
    heapify(heads)
    while heads:
        *_, user, sequence = heappop(heads)
        yield sequence
        if user not in closed and (head := next(rests[user], None)) is not None:
            heappush(heads, make_turn(head, shares))


def make_turn(
    sequence: Sequence, shares: dict[str, Share]
) -> tuple[int, int | Fraction, int, tuple[int, int], str, Sequence]:
    """Return a user's next sequence behind what sorts it among other users' next ones."""
    request, user = sequence.request, sequence.user
    share = shares[user]
    return request.order[0], share.tokens, share.turn, request.order, user, sequence
