"""Which grammar is compiled next: the user who got the least compile time is served first. Pure data, without clocks,
threads and processes.

There are lanes. Each grammar begins in the first one, the fast lane. A grammar that has used the lane's slice of
processor time continues in the next lane. If that has no place, the grammar is stopped and starts again there later:
always in the fast lane, elsewhere as soon as another user's grammar waits for the place. So a short grammar never waits
for a longer one, however many users have longer ones (decision 0104).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

SLICE_S = 0.2  # Processor time of a grammar in the fast lane. Also the charge of a running grammar until its end.
MEDIUM_S = 2.0  # Processor time of a grammar in the medium lane.
OLDEST_EVERY = 4  # Of this many grammars of a user, one is the oldest. The others are the cheapest.
MAX_DEBTORS = 256  # Users without a grammar here, whose use above the others' is remembered.


@dataclass(slots=True, eq=False)
class Job:
    """A grammar to compile.

    - cost: an estimate, which orders the jobs of one user.
    - lane: the number of its lane.
    - users: the users who wait for it. payer: the user in whose turn it runs; None while it waits.
    - background: the payer has another job, which waits or runs. So this one gives way to the jobs of users with one.
    """

    cost: int
    lane: int = 0
    arrival: int = -1
    users: list[str] = field(default_factory=list)
    payer: str | None = None
    background: bool = False

    @property
    def slow(self) -> bool:
        """True beyond the fast lane."""
        return self.lane > 0


@dataclass(frozen=True, slots=True)
class Lane:
    """Grammars that run at once: `places` of all users, at most `per_user` of one, for `slice_s` of processor time."""

    places: int
    per_user: int
    slice_s: float = inf


@dataclass(slots=True, eq=False)
class Account:
    """A user's jobs. used_s: processor time, divided by the weight. turns: number of jobs taken so far."""

    weight: int = 1
    used_s: float = 0.0
    turns: int = 0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def load(self) -> float:
        """The number of waiting jobs, divided by the weight."""
        return len(self.waiting) / self.weight

    def count_running(self, lane: int) -> int:
        return sum(job.lane == lane for job in self.running)

    def first(self, lane: int) -> Job | None:
        """Return the next job of a lane: the cheapest one, and in every OLDEST_EVERY-th turn the oldest one."""
        oldest = self.turns % OLDEST_EVERY == OLDEST_EVERY - 1
        jobs = (job for job in self.waiting if job.lane == lane)
        return min(jobs, key=lambda job: (0 if oldest else job.cost, job.arrival), default=None)


class FairSchedule:
    """The jobs that wait and run.

    A job that several users wait for has a place in each of their lines. It is charged to the user whose turn comes
    first.

    Args:
        lanes: the fast lane first.
        max_waiting: places in all lines together. Stopped jobs go back to their lines beyond this number.
    """

    def __init__(self, lanes: Sequence[Lane], max_waiting: int) -> None:
        self._lanes = lanes
        self._max_waiting = max_waiting
        self._accounts: dict[str, Account] = {}
        self._arrivals = count()

    def add(self, job: Job, user: str, weight: int = 1) -> tuple[Job, str] | None:
        """Add a user who waits for this job. Return the job and the user who lose their place for it, if any.

        If all places are taken, the user with the most waiting jobs, by weight, loses the newest one. So a user with at
        most an equal part of the places loses none to others.

        Args:
            weight: the user's from now on.
        """
        if job.arrival < 0:
            job.arrival = next(self._arrivals)
        if user in job.users:
            return None
        job.users.append(user)
        if job.payer is not None:
            return None
        account = self._open_account(user)
        account.weight = weight
        account.waiting.append(job)
        if self.num_waiting <= self._max_waiting:
            return None
        longest = max(self._accounts, key=lambda name: (self._accounts[name].load, name == user))
        newest = max(self._accounts[longest].waiting, key=lambda waiting: waiting.arrival)
        self.remove(newest, longest)
        return newest, longest

    def remove(self, job: Job, user: str) -> None:
        """Remove a user who waits for this job. A running job continues."""
        if user in job.users:
            job.users.remove(user)
            account = self._accounts.get(user)
            if account is not None and job in account.waiting:
                account.waiting.remove(job)
                self._close_accounts()

    def take(self) -> Job | None:
        """Return the next job to run; None if none may run now."""
        for number, lane in enumerate(self._lanes):
            if self._is_full(number):
                continue
            turns = [
                ((account.used_s, len(account.running), job.arrival), user, job)
                for user, account in self._accounts.items()
                if account.count_running(number) < lane.per_user and (job := account.first(number)) is not None
            ]
            if turns:
                _, user, job = min(turns, key=lambda turn: turn[0])
                self._start_job(job, user)
                return job
        return None

    def may_continue(self, job: Job, used_s: float) -> bool:
        """Return whether a running job goes on after this processor time. It changes lanes after its slice, if the next
        lane has a place for it. False: it must be stopped, because its place is another's."""
        while used_s >= self._lanes[job.lane].slice_s:
            account, number = self._pay(job), job.lane + 1
            full = self._is_full(number) or account.count_running(number) >= self._lanes[number].per_user
            if full or self._is_awaited(number, account):  # no running job passes those that wait
                return job.slow and not (self._is_full(job.lane) and self._is_awaited(job.lane, account))
            job.lane = number
        return True

    def stop(self, job: Job, used_s: float) -> None:
        """Put a running job back into the lines of the next lane, after this processor time."""
        self._end_run(job, used_s)
        job.lane = min(job.lane + 1, len(self._lanes) - 1)
        for user in job.users:
            self._open_account(user).waiting.append(job)
        self._close_accounts()

    def finish(self, job: Job, used_s: float) -> None:
        """Remove a running job that has ended after this processor time."""
        self._end_run(job, used_s)
        job.users.clear()
        self._close_accounts()

    @property
    def num_waiting(self) -> int:
        """Number of taken places in all lines."""
        return sum(len(account.waiting) for account in self._accounts.values())

    def _is_full(self, number: int) -> bool:
        running = sum(account.count_running(number) for account in self._accounts.values())
        return running >= self._lanes[number].places

    def _is_awaited(self, number: int, holder: Account) -> bool:
        """Return whether a user other than the holder waits for a place of the lane, and may have it."""
        return any(
            account.count_running(number) < self._lanes[number].per_user and account.first(number) is not None
            for account in self._accounts.values()
            if account is not holder
        )

    def _start_job(self, job: Job, user: str) -> None:
        for other in job.users:
            self._accounts[other].waiting.remove(job)
        account = self._accounts[user]
        job.payer, job.background = user, account.active
        account.running.append(job)
        account.turns += 1
        account.used_s += SLICE_S / account.weight

    def _end_run(self, job: Job, used_s: float) -> None:
        account = self._pay(job)
        account.running.remove(job)
        account.used_s += (used_s - SLICE_S) / account.weight
        job.payer = None

    def _pay(self, job: Job) -> Account:
        assert job.payer is not None, "only a running job has a payer"
        return self._accounts[job.payer]

    def _open_account(self, user: str) -> Account:
        """Return a user's account. A user who comes back saves no turns for later: the use counts as the least of the
        active users'."""
        account = self._accounts.pop(user, None) or Account()
        if not account.active:
            least = min((other.used_s for other in self._accounts.values() if other.active), default=0.0)
            account.used_s = max(account.used_s, least)
        self._accounts[user] = account
        return account

    def _close_accounts(self) -> None:
        """Forget users without a job, except those who have used more than others who still wait."""
        active = [account.used_s for account in self._accounts.values() if account.active]
        least = min(active, default=float("inf"))
        idle = [user for user, account in self._accounts.items() if not account.active]
        debtors = [user for user in idle if self._accounts[user].used_s > least][-MAX_DEBTORS:]
        for user in set(idle) - set(debtors):
            del self._accounts[user]


def make_lanes(workers: int) -> list[Lane]:
    """Return the lanes. A user may take all places but one, so that another user finds one.

    Beyond the fast lane each grammar may take all of the memory. The kernel divides the time between those that run.
    """
    one_less = max(1, workers - 1)
    return [Lane(workers + 1, workers, SLICE_S), Lane(workers, one_less, MEDIUM_S), Lane(workers, one_less)]
