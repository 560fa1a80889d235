"""The arithmetic of limits per user: buckets, reservations, the table that front ends share. Time is the tests' own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.api.rate_bucket import UNIT, Bucket
from tailrace.api.user import make_user_id
from tailrace.api.user_admission import anthropic_headers, openai_headers
from tailrace.api.user_limits import Admission, Standing, UserLimits, format_duration
from tailrace.api.user_table import MIN_PLACES, WINDOW, TableLayout, UserTable, make_shared_file
from tailrace.config import ServerConfig, UserConfig
from tailrace.errors import OverloadedError, RateLimitError

SECOND = 1_000_000
A, B = make_user_id("address", "10.0.0.1"), make_user_id("address", "10.0.0.2")


class Clock:
    """Microseconds that stand still."""

    def __init__(self) -> None:
        self.now_us = 10**12

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND)


def limits_of(clock: Clock, **config: Any) -> UserLimits:
    """The limits of a single front end."""
    return UserLimits(ServerConfig(**config), UserTable(TableLayout(1, 0)), clock)


def left(limits: UserLimits, user: str = A) -> tuple[int, int]:
    """Requests and tokens that remain."""
    standing = limits.read_standing(user)
    return standing.requests.remaining, standing.tokens.remaining


def refusal(limits: UserLimits, user: str = A) -> RateLimitError:
    """The error of one request more."""
    with pytest.raises(RateLimitError) as caught:
        limits.admit(user)
    return caught.value


def test_a_bucket_refills_within_a_minute_and_never_beyond_its_limit():
    bucket = Bucket(7).take(5)
    assert (bucket.remaining, bucket.reset_us) == (2, -(-5 * UNIT // 7))
    assert bucket.wait_us(2) == 0
    assert bucket.wait_us(3) == -(-UNIT // 7)
    wait = bucket.wait_us(3)
    assert bucket.refill(wait).wait_us(3) == 0
    assert bucket.refill(wait - 1).wait_us(3) == 1
    assert bucket.refill(bucket.reset_us) == Bucket(7)
    assert bucket.refill(10 * UNIT) == Bucket(7)
    assert bucket.refill(-SECOND) == bucket
    assert bucket.take(-9) == Bucket(7)


def test_a_bucket_in_debt_has_nothing_and_says_when():
    bucket = Bucket(60).take(90)
    assert (bucket.remaining, bucket.reset_us) == (0, 90 * SECOND)
    assert bucket.wait_us(1) == 31 * SECOND


def test_no_limit_is_no_bucket():
    bucket = Bucket(0).take(10**6)
    assert (bucket, bucket.wait_us(10**6), bucket.reset_us) == (Bucket(0), 0, 0)


@settings(deadline=None)
@given(
    st.integers(1, 10**9),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 90 * SECOND)), max_size=30),
    st.integers(0, 1000),
)
def test_a_reservation_that_is_settled_leaves_what_was_used(limit: int, steps: list[tuple[int, int]], used: int):
    """Reserving much and giving the rest back is the same as taking what was used, while the bucket is not full."""
    reserved, exact = Bucket(limit).take(1000), Bucket(limit).take(used)
    for amount, elapsed_us in steps:
        reserved, exact = reserved.take(amount).refill(elapsed_us), exact.take(amount).refill(elapsed_us)
        if not exact.used:
            return
    assert reserved.take(used - 1000) == exact


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.integers(0, 5 * SECOND), min_size=1, max_size=200))
def test_no_window_has_more_than_the_bucket_and_its_refill(limit: int, gaps: list[int]):
    """In any span a user starts at most the limit, and what comes in within the span."""
    clock = Clock()
    limits = limits_of(clock, requests_per_minute=limit)
    times: list[int] = []
    for gap_us in gaps:
        clock.now_us += gap_us
        try:
            limits.admit(A).finish()
            times.append(clock.now_us)
        except RateLimitError as error:
            clock.now_us += error.wait_ms * 1000  # exactly as long as it says, up to a millisecond
            limits.admit(A).finish()
            times.append(clock.now_us)
    for first in range(0, len(times), 7):
        for last in range(first, len(times), 5):
            assert (last - first + 1 - limit) * UNIT <= limit * (times[last] - times[first])


def test_requests_per_minute():
    clock = Clock()
    limits = limits_of(clock, requests_per_minute=3)
    for remaining in (2, 1, 0):
        limits.admit(A)
        assert left(limits)[0] == remaining
    error = refusal(limits)
    assert (error.status, error.code, error.type, error.wait_ms) == (429, "rate_limit_exceeded", "requests", 20_000)
    assert str(error) == (
        "Rate limit reached on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s."
    )
    assert left(limits, B) == (3, 0)  # another user has its own
    limits.admit(B)
    clock.advance(19.999)
    assert refusal(limits).wait_ms == 1
    clock.advance(0.001)
    limits.admit(A)  # and refusals have cost nothing
    clock.advance(60)
    assert left(limits)[0] == 3


def test_tokens_are_reserved_and_settled():
    clock = Clock()
    limits = limits_of(clock, tokens_per_minute=600)
    first = limits.admit(A)
    first.reserve(500)
    assert left(limits)[1] == 100
    second = limits.admit(A)
    with pytest.raises(RateLimitError) as caught:
        second.reserve(130)
    assert (caught.value.type, caught.value.wait_ms) == ("tokens", 3000)
    assert "tokens per min (TPM): Limit 600, Used 500, Requested 130. Please try again in 3s." in str(caught.value)
    second.finish()
    assert left(limits)[1] == 100
    first.finish(40)
    assert left(limits)[1] == 560
    first.finish(40)  # once
    assert left(limits)[1] == 560


def test_a_request_that_its_tokens_refuse_counts_nowhere():
    clock = Clock()
    limits = limits_of(clock, requests_per_minute=10, tokens_per_minute=600, max_requests_per_user=2)
    limits.admit(A).reserve(600)
    clock.advance(0.1)
    before = left(limits)
    assert before == (9, 1)
    second = limits.admit(A)
    with pytest.raises(RateLimitError):
        second.reserve(2)
    second.finish()
    assert left(limits) == before
    limits.admit(A).reserve(1)  # and runs no more


def test_what_was_used_beyond_the_reservation_is_owed():
    clock = Clock()
    limits = limits_of(clock, tokens_per_minute=600)
    first = limits.admit(A)
    first.reserve(10)
    first.finish(1200)
    error = refusal(limits)
    assert (error.type, error.wait_ms) == ("tokens", 60_100)
    clock.advance(60.1)
    limits.admit(A)


def test_of_two_limits_the_longer_wait_is_named():
    clock = Clock()
    limits = limits_of(clock, requests_per_minute=60, tokens_per_minute=600)
    for _ in range(59):
        limits.admit(A).finish(10)
    limits.admit(A).finish(71)
    error = refusal(limits)
    assert (error.type, error.wait_ms) == ("tokens", 6_200)
    clock.advance(6.2)
    limits.admit(A)


def test_a_request_that_does_not_run_is_no_running_request():
    limits = limits_of(Clock(), max_requests_per_user=1)
    for _ in range(3):
        limits.admit(A, costs_tokens=False, runs=False)
    running = limits.admit(A)
    limits.admit(A, costs_tokens=False, runs=False).finish()
    with pytest.raises(RateLimitError):
        limits.admit(A)
    running.finish()
    limits.admit(A)


def test_requests_at_once():
    limits = limits_of(Clock(), max_requests_per_user=2)
    first, second = limits.admit(A), limits.admit(A)
    error = refusal(limits)
    assert (error.type, error.wait_ms) == ("requests", 1000)
    assert "running requests: Limit 2, Used 2, Requested 1" in str(error)
    limits.admit(B)
    first.finish()
    first.finish()
    third = limits.admit(A)
    refusal(limits)
    second.finish()
    third.finish()
    for _ in range(2):
        limits.admit(A)


def test_users_with_limits_of_their_own():
    users = {
        "fast": UserConfig(api_key="one", requests_per_minute=5),
        "free": UserConfig(api_key="two", requests_per_minute=0, tokens_per_minute=0),
    }
    config = ServerConfig(users=users, requests_per_minute=2, tokens_per_minute=100)
    limits = UserLimits(config, UserTable(TableLayout(1, 0)), Clock())
    assert limits.rates_of(make_user_id("key", "one")) == (5, 100, 0)
    assert limits.rates_of(make_user_id("key", "two")) == (0, 0, 0)
    assert limits.rates_of(make_user_id("key", "three")) == (2, 100, 0)
    for _ in range(20):
        limits.admit(make_user_id("key", "two")).reserve(10**9)
    assert config.limits_users
    assert not ServerConfig(users={"a": UserConfig(api_key="one", requests_per_minute=0)}).limits_users
    assert ServerConfig(users={"a": UserConfig(api_key="one", max_requests=1)}).limits_users


# ---- the table


def shared(count: int, clock: Clock, **config: Any) -> list[UserLimits]:
    """The limits of several front ends of one server, in one process: its own lock does not stop it."""
    layout = TableLayout(count, 0)
    file = make_shared_file(layout)
    return [UserLimits(ServerConfig(**config), UserTable(layout, file, place), clock) for place in range(count)]


@pytest.mark.parametrize("memfd", [True, False])
def test_front_ends_share_what_a_user_has(monkeypatch: pytest.MonkeyPatch, memfd: bool):
    if not memfd:  # as on macOS
        monkeypatch.delattr(os, "memfd_create", raising=False)
    clock = Clock()
    fronts = shared(3, clock, requests_per_minute=6, tokens_per_minute=600, max_requests_per_user=4)
    admitted = [fronts[place % 3].admit(A) for place in range(4)]
    for front in fronts:
        assert left(front) == (2, 600)
        assert "running" in str(refusal(front))
    admitted[0].reserve(500)
    assert [left(front)[1] for front in fronts] == [100] * 3
    with pytest.raises(RateLimitError):
        admitted[1].reserve(101)
    admitted[0].finish(20)
    admitted[1].finish()
    assert [left(front) for front in fronts] == [(3, 580)] * 3
    fronts[2].admit(A)


def test_a_front_end_that_dies_leaves_no_running_requests():
    layout = TableLayout(2, 0)
    file, clock = make_shared_file(layout), Clock()
    tables = [UserTable(layout, file, place) for place in range(2)]
    first, second = [UserLimits(ServerConfig(max_requests_per_user=2), table, clock) for table in tables]
    kept = first.admit(A)
    second.admit(A)
    refusal(first)
    with tables[0] as table:
        table.forget_running(1)
    first.admit(A)
    refusal(second)
    kept.finish()
    second.admit(A)


WORKER = """
import sys
from tailrace.api.user_limits import UserLimits
from tailrace.api.user_table import TableLayout, UserTable
from tailrace.config import ServerConfig
from tailrace.errors import RateLimitError
file, place, user = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
table = UserTable(TableLayout(3, 0), file, place)
limits = UserLimits(ServerConfig(requests_per_minute=1_000), table, clock=lambda: 10**12)
admitted = 0
sys.stdin.readline()
for _ in range(1_000):
    try:
        limits.admit(user).finish()
        admitted += 1
    except RateLimitError:
        pass
print(admitted)
"""


def test_processes_do_not_lose_counts():
    """Three processes ask 3,000 times at the same moment: exactly the limit passes."""
    layout = TableLayout(3, 0)
    file = make_shared_file(layout)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(file), str(place), A],
            pass_fds=[file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in range(3)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    passed = [int(worker.communicate(timeout=300)[0]) for worker in workers]
    assert sum(passed) == 1_000
    limits = UserLimits(ServerConfig(requests_per_minute=1_000), UserTable(layout, file), lambda: 10**12)
    assert left(limits)[0] == 0
    os.close(file)


def neighbours(table: UserTable, count: int) -> list[str]:
    """Users whose places are among the same ones."""
    first = table._first_place(bytes.fromhex(A))  # pyright: ignore[reportPrivateUsage]
    found, number = [A], 0
    table._first_place = lambda id: first  # type: ignore[method-assign]
    while len(found) < count:
        found.append(make_user_id("address", str(number)))
        number += 1
    return found


def test_users_who_crowd_lose_only_what_is_worth_nothing():
    clock, table = Clock(), UserTable(TableLayout(1, 0))
    limits = UserLimits(ServerConfig(requests_per_minute=60), table, clock)
    users = neighbours(table, WINDOW + 2)
    for place, user in enumerate(users[:WINDOW]):
        for _ in range(2 + (place + 3) % WINDOW):
            limits.admit(user).finish()
    before = {user: left(limits, user) for user in users[:WINDOW]}
    most = max(before, key=lambda user: before[user])
    limits.admit(users[WINDOW]).finish()
    after = {user: left(limits, user) for user in users[:WINDOW]}
    assert {user for user in before if before[user] != after[user]} == {most}
    assert after[most] == (60, 0)
    clock.advance(120)  # all are as new: the places are free
    assert limits.admit(users[-1])


def test_a_user_with_a_running_request_keeps_its_place():
    clock, table = Clock(), UserTable(TableLayout(1, 0))
    limits = UserLimits(ServerConfig(requests_per_minute=60, max_requests_per_user=1), table, clock)
    users = neighbours(table, WINDOW + 1)
    running = [limits.admit(user) for user in users[:WINDOW]]
    clock.advance(600)
    with pytest.raises(OverloadedError):
        limits.admit(users[-1])
    running[3].finish()
    limits.admit(users[-1])
    for user in (*users[:3], *users[4:]):
        refusal(limits, user)


def test_a_user_on_each_connection_finds_a_place():
    """As many users as connections run a request each, and four front ends share the table."""
    config = ServerConfig(requests_per_minute=60, max_connections=16_384, front_ends=4)
    limits = UserLimits(config, UserTable(TableLayout.of(config)), Clock())
    for number in range(4 * 16_384):
        limits.admit(make_user_id("address", str(number)))


def test_no_client_can_choose_its_neighbours():
    """The secret differs between servers; a user's places are the same in all front ends of one."""
    layout = TableLayout(2, 0)
    file = make_shared_file(layout)
    ids = [bytes.fromhex(make_user_id("address", str(number))) for number in range(50)]
    own = [
        [table._first_place(id) for id in ids]  # pyright: ignore[reportPrivateUsage]
        for table in (UserTable(layout, file), UserTable(layout, file, 1), UserTable(layout))
    ]
    assert own[0] == own[1] != own[2]
    assert all(0 <= place < MIN_PLACES for places in own for place in places)


def test_the_last_place_has_neighbours_too():
    layout, clock = TableLayout(2, 3), Clock()
    table = UserTable(layout, make_shared_file(layout), 1)
    table._first_place = lambda id: MIN_PLACES - 1  # type: ignore[method-assign]
    limits = UserLimits(ServerConfig(requests_per_minute=60), table, clock)
    users = [make_user_id("address", str(number)) for number in range(WINDOW)]
    for number, user in enumerate(users):
        for _ in range(number + 1):
            limits.admit(user)
    assert [left(limits, user)[0] for user in users] == [59 - number for number in range(WINDOW)]
    with table:
        places = [table.claim(user, clock()) for user in users]
        assert [None if place is None else table.running(place) for place in places] == [*range(1, WINDOW + 1)]


def test_thousands_of_users_have_their_own():
    clock = Clock()
    limits = limits_of(clock, requests_per_minute=10)
    users = [make_user_id("address", str(number)) for number in range(5_000)]
    for number, user in enumerate(users):
        for _ in range(number % 3 + 1):
            limits.admit(user).finish()
    assert [left(limits, user)[0] for user in users] == [9 - number % 3 for number in range(5_000)]


# ---- what answers say


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (8640, "8.64s"),
        (59_001, "59.001s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (3_600_000, "1h0m0s"),
        (3_661_050, "1h1m1.05s"),
    ],
)
def test_durations_are_written_as_openai_does(ms: int, text: str):
    assert format_duration(ms) == text


def test_headers():
    standing = Standing(Bucket(60).take(1), Bucket(150_000).take(900_000))
    assert openai_headers(standing) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert anthropic_headers(standing, 1_700_000_000.25) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:22Z",
        "anthropic-ratelimit-tokens-limit": "150000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2023-11-14T22:19:21Z",
    }
    nothing = Standing(Bucket(0), Bucket(0))
    assert openai_headers(nothing) == anthropic_headers(nothing, 0) == {}
    assert list(openai_headers(Standing(Bucket(0), Bucket(9)))) == [
        f"x-ratelimit-{part}-tokens" for part in ("limit", "remaining", "reset")
    ]


def test_an_admission_without_a_reservation_pays_what_it_used():
    limits = limits_of(Clock(), tokens_per_minute=600)
    admission: Admission = limits.admit(A)
    admission.finish(7)
    assert left(limits)[1] == 593
