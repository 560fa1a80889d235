"""Limits per user: requests and tokens per minute, and requests at once (decision 0091). Knows no HTTP.

A request is admitted when its head has come. It reserves tokens when it is prepared, and settles with what it used when
it has ended. A request that a limit refuses counts nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from tailrace.api.rate_bucket import Bucket, divide_up
from tailrace.api.user import index_named_users
from tailrace.api.user_table import Used, UserTable
from tailrace.config import ServerConfig
from tailrace.errors import OverloadedError, RateLimitError

RETRY_MS = 1000  # when a running request ends is not known


class Rates(NamedTuple):
    """One user's limits; 0: none. running: requests at once."""

    requests: int = 0
    tokens: int = 0
    running: int = 0


class Standing(NamedTuple):
    """What a user has left, by limit."""

    requests: Bucket
    tokens: Bucket


def read_clock_us() -> int:
    """Return the time of the clock that all processes of a machine share."""
    return time.monotonic_ns() // 1000


def read_rates(config: ServerConfig) -> tuple[Rates, dict[str, Rates]]:
    """Return the limits of all users, and those of the users with limits of their own, by id."""
    common = Rates(config.requests_per_minute, config.tokens_per_minute, config.max_requests_per_user)
    own = {
        id: Rates(
            *(
                theirs if mine is None else mine
                for mine, theirs in zip(
                    (user.requests_per_minute, user.tokens_per_minute, user.max_requests), common, strict=True
                )
            )
        )
        for id, user in index_named_users(config).items()
    }
    return common, own


class UserLimits:
    """The limits of a server, in one of its front ends.

    Attributes:
        clock: returns microseconds.
        on_refused: called with the user and the name of the limit (a field of Rates) that refuses a request.
    """

    def __init__(self, config: ServerConfig, table: UserTable, clock: Callable[[], int] = read_clock_us) -> None:
        self._common, self._own = read_rates(config)
        self._table, self.clock = table, clock
        self.on_refused: Callable[[str, str], None] = lambda user, limit: None

    def rates_of(self, user: str) -> Rates:
        """Return the user's limits."""
        return self._own.get(user, self._common)

    def admit(self, user: str, costs_tokens: bool = True, runs: bool = True) -> Admission:
        """Count a request of the user that begins.

        Args:
            costs_tokens: it needs some that the user has left. runs: it is one of the user's running requests.

        Raises:
            RateLimitError: the user has no request left, has used more tokens than its limit, or runs too many.
            OverloadedError: too many users run requests.
        """
        rates = self.rates_of(user)
        with self._table as table:
            now_us = self.clock()
            place = table.claim(user, now_us)
            if place is None:
                raise OverloadedError("too many users run requests at the same time")
            running, standing = table.running(place), self._load(rates, place, now_us)
            tokens = min(1, rates.tokens) if costs_tokens else 0
            refusal = check_running(rates, running) if runs else None
            refusal = refusal or check_rates(standing, requests=1, tokens=tokens)
            if refusal is None:
                table.add_running(place, int(runs))
                self._save(place, now_us, standing._replace(requests=standing.requests.take(1)))
        if refusal is not None:
            self._refuse(user, refusal)
        return Admission(self, user, rates, place, runs)

    def read_standing(self, user: str) -> Standing:
        """Return what the user has left."""
        rates = self.rates_of(user)
        with self._table as table:
            place = table.find(user)
            if place is None:
                return Standing(Bucket(rates.requests), Bucket(rates.tokens))
            return self._load(rates, place, self.clock())

    def reserve(self, user: str, rates: Rates, place: int, tokens: int) -> None:
        """See Admission.reserve."""
        with self._table:
            now_us = self.clock()
            standing = self._load(rates, place, now_us)
            refusal = check_rates(standing, requests=0, tokens=tokens)
            if refusal is None:
                standing = standing._replace(tokens=standing.tokens.take(tokens))
            else:
                standing = standing._replace(requests=standing.requests.take(-1))
            self._save(place, now_us, standing)
        if refusal is not None:
            self._refuse(user, refusal)

    def settle(self, rates: Rates, place: int, tokens: int) -> None:
        """Count a request that has ended. tokens: the tokens beyond its reservation; negative: the unused ones."""
        with self._table as table:
            now_us = self.clock()
            standing = self._load(rates, place, now_us)
            self._save(place, now_us, standing._replace(tokens=standing.tokens.take(tokens)))
            table.add_running(place, -1)

    def _load(self, rates: Rates, place: int, now_us: int) -> Standing:
        used = self._table.load(place)
        elapsed_us = now_us - used.at_us
        requests, tokens = Bucket(rates.requests, used.requests), Bucket(rates.tokens, used.tokens)
        return Standing(requests.refill(elapsed_us), tokens.refill(elapsed_us))

    def _save(self, place: int, now_us: int, standing: Standing) -> None:
        idle_us = now_us + max(bucket.reset_us for bucket in standing)
        self._table.store(place, Used(now_us, standing.requests.used, standing.tokens.used, idle_us))

    def _refuse(self, user: str, refusal: Refusal) -> None:
        self.on_refused(user, refusal.limit)
        raise RateLimitError(refusal.message, refusal.kind, refusal.wait_ms)


class Refusal(NamedTuple):
    """Why a limit refuses a request. limit: a field of Rates. kind: see RateLimitError."""

    limit: str
    kind: str
    message: str
    wait_ms: int


def check_running(rates: Rates, running: int) -> Refusal | None:
    """Return a refusal if the user runs as many requests as it may."""
    if not rates.running or running < rates.running:
        return None
    message = describe_refusal("running requests", rates.running, running, 1, RETRY_MS)
    return Refusal("running", "requests", message, RETRY_MS)


def check_rates(standing: Standing, requests: int, tokens: int) -> Refusal | None:
    """Return a refusal if the user has not so much left: of two limits by the one that lasts longer."""
    refusals: list[Refusal] = []
    for limit, bucket, name, amount in (
        ("requests", standing.requests, "requests per min (RPM)", requests),
        ("tokens", standing.tokens, "tokens per min (TPM)", tokens),
    ):
        if amount and (wait_us := bucket.wait_us(amount)):
            wait_ms = divide_up(wait_us, 1000)
            used = bucket.limit - bucket.remaining
            message = describe_refusal(name, bucket.limit, used, amount, wait_ms)
            refusals.append(Refusal(limit, limit, message, wait_ms))
    return max(refusals, key=lambda refusal: refusal.wait_ms, default=None)


def describe_refusal(name: str, limit: int, used: int, requested: int, wait_ms: int) -> str:
    """Return the message, in OpenAI's words: programs read the time from them."""
    return (
        f"Rate limit reached on {name}: Limit {limit}, Used {used}, Requested {requested}. Please try again in "
        f"{format_duration(wait_ms)}."
    )


def format_duration(ms: int) -> str:
    """Return a time as OpenAI writes it: 20ms, 1.5s, 6m0s, 1h0m0s."""
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".") if rest % 1000 else str(rest // 1000)
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{seconds}s"


class Admission:
    """A request that is admitted. Call `finish` once it has ended; further calls have no effect. One that does not run
    has ended already.

    Attributes:
        rates: the user's limits. outlives: it may run longer than its connection; then whatever runs it finishes it.
    """

    def __init__(self, limits: UserLimits, user: str, rates: Rates, place: int, runs: bool) -> None:
        self._limits, self._user, self._place = limits, user, place
        self.rates = rates
        self.outlives = False
        self._reserved = 0
        self._open = runs

    def reserve(self, tokens: int) -> None:
        """Reserve tokens, at most the limit.

        Raises:
            RateLimitError: the user has fewer left. Then the request does not count.
        """
        self._limits.reserve(self._user, self.rates, self._place, tokens)
        self._reserved = tokens

    def finish(self, tokens: int = 0) -> None:
        """Settle the request, which has ended and has used this number of tokens."""
        if self._open:
            self._open = False
            self._limits.settle(self.rates, self._place, tokens - self._reserved)
