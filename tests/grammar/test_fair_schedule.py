"""The order of grammars: arrivals and costs in, the order of the users out. No clock, no thread, no process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.grammar.fair_schedule import MAX_DEBTORS, OLDEST_EVERY, SLICE_S, FairSchedule, Job, Lane

FAST, SLOW = Lane(3, 2), Lane(2, 1)
ONE = Lane(1, 1)


@dataclass
class World:
    """Jobs of known cost run on the schedule, each at full speed. `log`: the ends of jobs, as (time, name)."""

    schedule: FairSchedule = field(default_factory=lambda: FairSchedule(FAST, SLOW, 1000))
    now: float = 0.0
    log: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events: list[tuple[float, int, str, Job, float]] = []
        self.numbers, self.names, self.costs = count(), {}, {}

    def arrive(self, user: str, cost_s: float, at: float = 0.0, name: str = "", estimate: int = 0) -> Job:
        job = Job(estimate)
        self.names[job], self.costs[job] = name or user, cost_s
        heappush(self.events, (at, next(self.numbers), f"arrive {user}", job, 0.0))
        return job

    def run(self, until: float = 1e9) -> list[str]:
        """Run until this time. Return the names of the jobs that ended, in order."""
        while self.events and self.events[0][0] <= until:
            self.now, _, kind, job, begun = heappop(self.events)
            if kind.startswith("arrive"):
                assert self.schedule.add(job, kind.split()[1]) is None
            elif kind == "slice" and not self.schedule.slow_down(job):
                self.schedule.stop(job, SLICE_S)
            elif kind == "slice":
                heappush(self.events, (begun + self.costs[job], next(self.numbers), "end", job, begun))
            else:
                self.schedule.finish(job, self.costs[job])
                self.log.append((self.now, self.names[job]))
            if not self.events or self.events[0][0] > self.now:
                self.start_jobs()
        return [name for _, name in self.log]

    def start_jobs(self) -> None:
        while (job := self.schedule.take()) is not None:
            sliced = not job.slow and self.costs[job] > SLICE_S
            end = self.now + (SLICE_S if sliced else self.costs[job])
            heappush(self.events, (end, next(self.numbers), "slice" if sliced else "end", job, self.now))
            for account in self.schedule._accounts.values():
                for slow, lane in self.schedule._lanes.items():
                    assert account.count_running(slow) <= lane.per_user


def test_users_take_turns_by_their_time_not_by_their_number():
    """A's jobs cost almost four times as much as B's, so B gets four turns for each of A's."""
    world = World(FairSchedule(ONE, ONE, 1000))
    for i in range(8):
        world.arrive("a", 0.15, at=i * 1e-6)
        world.arrive("b", 0.04, at=i * 1e-6)
    assert "".join(world.run()) == "abbbbabbbbaaaaaa"


def test_within_a_user_the_cheapest_is_first_and_each_fourth_is_the_oldest():
    world = World(FairSchedule(ONE, ONE, 1000))
    for name, estimate in zip("fedcba", (6, 5, 4, 3, 2, 1), strict=True):
        world.arrive("u", 0.01, name=name, estimate=estimate)
    assert "".join(world.run()) == "abcfde"
    assert OLDEST_EVERY == 4


@pytest.mark.parametrize(("number", "cost_s"), [(12, 10.0), (100, 0.15), (500, 0.005)])
def test_a_small_grammar_never_waits_whatever_another_user_sends(number: int, cost_s: float):
    world = World()
    for i in range(number):
        world.arrive("a", cost_s, name=f"a{i}")
    asked = [0.003 + 0.1 * i for i in range(200)]
    for at in asked:
        world.arrive("b", 0.005, at=at)
    world.run(until=21)
    ends = [end for end, name in world.log if name == "b"]
    assert ends == pytest.approx([at + 0.005 for at in asked])


def test_a_slow_grammar_finds_a_place_beside_twelve_slower_ones():
    world = World()
    for i in range(12):
        world.arrive("a", 10.0, name=f"a{i}")
    world.arrive("b", 1.0, at=5.0)
    world.run(until=7)
    assert world.log == [(pytest.approx(6.0), "b")]


def test_a_slow_grammar_ends_however_many_small_ones_come():
    world = World(FairSchedule(ONE, ONE, 10_000))
    world.arrive("a", 3.0)
    for i in range(5000):
        world.arrive("b", 0.01, at=i * 0.01)
        world.arrive("a", 0.01, at=i * 0.01, name="small")
    world.run(until=6)
    assert "a" in [name for _, name in world.log]


def test_the_slow_lane_takes_turns_by_time_too():
    """A's grammars take almost five times as long as B's."""
    world = World(FairSchedule(Lane(9, 9), ONE, 1000))
    for i in range(6):
        world.arrive("a", 4.5, at=i * 1e-6)
        world.arrive("b", 1.0, at=i * 1e-6)
    world.run()
    assert "".join(name for _, name in world.log) == "abbbbbabaaaa"


def test_debts_are_remembered_while_others_wait_and_savings_are_not():
    """C always waits. A comes back after each grammar and gets no more time than C. B comes late and catches up
    nothing."""
    world = World(FairSchedule(ONE, ONE, 1000))
    for _ in range(200):
        world.arrive("c", 0.02)
    for i in range(400):
        world.arrive("a", 0.1, at=i * 0.05)
    for _ in range(100):
        world.arrive("b", 0.02, at=2.0)
    world.run(until=2.0)
    spent = Counter(name for _, name in world.log)
    assert abs(spent["a"] * 0.1 - spent["c"] * 0.02) <= 2 * SLICE_S
    world.run(until=3.0)
    later = Counter(name for end, name in world.log if end > 2.0)
    assert abs(later["b"] - later["c"]) <= 2
    assert abs(later["b"] * 0.02 - later["a"] * 0.1) <= 2 * SLICE_S


def test_a_user_who_comes_back_after_each_grammar_pays_for_the_last_one():
    schedule, spent = FairSchedule(ONE, ONE, 1000), Counter[str]()
    for _ in range(100):
        schedule.add(Job(0), "c")
    for _ in range(60):
        if "a" not in [user for user, account in schedule._accounts.items() if account.active]:
            schedule.add(Job(0), "a")
        job = schedule.take()
        assert job is not None
        user, cost_s = str(job.payer), 0.1 if job.payer == "a" else 0.02
        spent[user] += cost_s
        schedule.finish(job, cost_s)
    assert abs(spent["a"] - spent["c"]) <= 0.2


def test_of_two_users_with_equal_use_the_one_who_runs_less_is_next():
    schedule = FairSchedule(Lane(9, 9), ONE, 1000)
    for _ in range(3):
        schedule.add(Job(0), "a")
    assert schedule.take() is not None
    schedule.add(later := Job(0), "b")
    assert schedule.take() is later


def test_a_user_that_fills_the_places_loses_its_own():
    schedule = FairSchedule(FAST, SLOW, 10)
    mine = [Job(0) for _ in range(12)]
    lost = [schedule.add(job, "a") for job in mine]
    assert lost[:10] == [None] * 10
    assert lost[10:] == [(mine[10], "a"), (mine[11], "a")]
    theirs = [Job(0) for _ in range(6)]
    taken = [schedule.add(job, "b") for job in theirs]
    assert taken == [(mine[place], "a") for place in (9, 8, 7, 6, 5)] + [(theirs[5], "b")]
    assert schedule.num_waiting == 10


def test_a_grammar_that_two_wait_for_comes_with_the_first_turn():
    schedule = FairSchedule(ONE, ONE, 1000)
    others = [Job(i) for i in range(9)]
    for job in others:
        schedule.add(job, "a")
    shared = Job(100)
    schedule.add(shared, "a")
    schedule.add(shared, "b")
    first = schedule.take()
    assert first is others[0]
    schedule.finish(first, 0.1)
    assert schedule.take() is shared
    assert shared.payer == "b"
    schedule.remove(shared, "b")  # B leaves: the job still runs, and A waits for it
    schedule.stop(shared, SLICE_S)
    assert schedule.num_waiting == 9
    schedule.remove(shared, "a")
    assert schedule.num_waiting == 8


def test_grammars_of_a_user_with_several_give_way():
    """A has three at once, whether they wait or run. B has one. A's last one is its only one, when it starts."""
    schedule = FairSchedule(Lane(9, 2), ONE, 1000)
    for user in "aaab":
        schedule.add(Job(0), user)
    taken = [job for _ in range(9) if (job := schedule.take()) is not None]
    assert sorted((job.payer, job.background) for job in taken) == [("a", True), ("a", True), ("b", False)]
    for job in taken:
        schedule.finish(job, 0.0)
    last = schedule.take()
    assert last is not None
    assert (last.payer, last.background) == ("a", False)


def test_a_stopped_grammar_that_nobody_wants_is_gone():
    schedule = FairSchedule(ONE, ONE, 1000)
    job = Job(0)
    schedule.add(job, "a")
    assert schedule.take() is job
    schedule.remove(job, "a")
    schedule.stop(job, SLICE_S)
    assert schedule.take() is None
    assert schedule._accounts == {}


def test_the_memory_of_debts_is_bounded():
    schedule = FairSchedule(Lane(2, 1), ONE, 1000)
    held = Job(0)
    schedule.add(held, "a")
    assert schedule.take() is held  # A runs for ever
    for i in range(3 * MAX_DEBTORS):
        schedule.add(job := Job(0), f"user {i}")
        assert schedule.take() is job
        schedule.finish(job, 1.0)
    assert len(schedule._accounts) == MAX_DEBTORS + 1
    schedule.finish(held, 1.0)
    assert schedule._accounts == {}


COSTS = st.sampled_from([0.001, 0.05, 0.3, 2.0])
ARRIVALS = st.lists(st.tuples(st.sampled_from("abc"), COSTS, st.floats(0, 3)), max_size=40)


@settings(max_examples=100, deadline=None)
@given(ARRIVALS)
def test_every_job_ends_once_and_no_account_is_left(arrivals: list[tuple[str, float, float]]):
    world = World()
    for i, (user, cost_s, at) in enumerate(arrivals):
        world.arrive(user, cost_s, at, name=f"{user}{i}")
    assert sorted(world.run()) == sorted(f"{user}{i}" for i, (user, _, _) in enumerate(arrivals))
    assert world.schedule._accounts == {}
    assert world.schedule.num_waiting == 0
