"""The order of grammars: arrivals and costs in, the order of the users out. No clock, no thread, no process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.grammar.fair_schedule import (
    MAX_DEBTORS,
    MEDIUM_S,
    OLDEST_EVERY,
    SLICE_S,
    FairSchedule,
    Job,
    Lane,
    make_lanes,
)

LOOK_S = 0.25
FAST, SLOW = Lane(3, 2, SLICE_S), Lane(2, 1)
ONE, LAST = Lane(1, 1, SLICE_S), Lane(1, 1)


@dataclass
class World:
    """Jobs of known cost run on the schedule, each at full speed. `log`: the ends of jobs, as (time, name)."""

    schedule: FairSchedule = field(default_factory=lambda: FairSchedule((FAST, SLOW), 1000))
    now: float = 0.0
    log: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events: list[tuple[float, int, str, Job, float]] = []
        self.numbers, self.names, self.costs = count(), {}, {}
        self.running: set[Job] = set()
        self.lost_s = 0.0

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
            elif kind == "look":
                self.look(job, begun)
            elif job in self.running:
                self.running.discard(job)
                self.schedule.finish(job, self.costs[job])
                self.log.append((self.now, self.names[job]))
            if not self.events or self.events[0][0] > self.now:
                self.start_jobs()
        return [name for _, name in self.log]

    def look(self, job: Job, begun: float) -> None:
        """Look at a running job, as the pool does: first when it has used SLICE_S, then again and again."""
        used_s = self.now - begun
        if used_s >= self.costs[job]:
            return
        if self.schedule.may_continue(job, used_s):
            heappush(self.events, (self.now + LOOK_S, next(self.numbers), "look", job, begun))
        else:
            self.events = [event for event in self.events if event[3] is not job]
            heapify(self.events)
            self.running.discard(job)
            self.lost_s += used_s
            self.schedule.stop(job, used_s)

    def start_jobs(self) -> None:
        while (job := self.schedule.take()) is not None:
            self.running.add(job)
            heappush(self.events, (self.now + self.costs[job], next(self.numbers), "end", job, self.now))
            heappush(self.events, (self.now + SLICE_S, next(self.numbers), "look", job, self.now))
            for account in self.schedule._accounts.values():
                for number, lane in enumerate(self.schedule._lanes):
                    assert account.count_running(number) <= lane.per_user


def test_users_take_turns_by_their_time_not_by_their_number():
    """A's jobs cost almost four times as much as B's, so B gets four turns for each of A's."""
    world = World(FairSchedule((ONE, LAST), 1000))
    for i in range(8):
        world.arrive("a", 0.15, at=i * 1e-6)
        world.arrive("b", 0.04, at=i * 1e-6)
    assert "".join(world.run()) == "abbbbabbbbaaaaaa"


def test_turns_and_places_are_by_weight():
    schedule = FairSchedule((ONE, LAST), 40)
    for _ in range(20):
        schedule.add(Job(0), "heavy", 3)
        schedule.add(Job(0), "light", 1)
    lost = schedule.add(Job(0), "heavy", 3)
    assert lost is not None
    assert lost[1] == "light"
    spent = Counter[str]()
    for _ in range(16):
        job = schedule.take()
        assert job is not None
        spent[str(job.payer)] += 1
        schedule.finish(job, 0.1)
    assert spent == {"heavy": 12, "light": 4}


def test_within_a_user_the_cheapest_is_first_and_each_fourth_is_the_oldest():
    world = World(FairSchedule((ONE, LAST), 1000))
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
    world = World(FairSchedule((ONE, LAST), 10_000))
    world.arrive("a", 3.0)
    for i in range(5000):
        world.arrive("b", 0.01, at=i * 0.01)
        world.arrive("a", 0.01, at=i * 0.01, name="small")
    world.run(until=6)
    assert "a" in [name for _, name in world.log]


def test_the_slow_lane_takes_turns_by_time_too():
    """A's grammars take almost five times as long as B's."""
    world = World(FairSchedule((Lane(9, 9, SLICE_S), LAST), 1000))
    for i in range(6):
        world.arrive("a", 4.5, at=i * 1e-6)
        world.arrive("b", 1.0, at=i * 1e-6)
    world.run()
    assert "".join(name for _, name in world.log) == "abbbbbabaaaa"


def fill_lanes(world: World, users: str, each: int = 3) -> None:
    """Let each user send so many grammars of 10 s."""
    for i in range(each):
        for user in users:
            world.arrive(user, 10.0, at=0.01 * i, name=f"slow {user}{i}")


@pytest.mark.parametrize(("users", "first"), [("abcd", 1), ("abcdefgh", 4)])
def test_a_medium_grammar_waits_for_no_long_one_however_many_users_have_some(users: str, first: int):
    """With one slow lane, four users fill its places for 10 s at a time. Now a user who comes waits for one medium turn
    of each other user, and for none later."""
    world = World(FairSchedule(make_lanes(2), 1000))
    fill_lanes(world, users)
    for at in (5.0, 12.0, 23.0, 24.0, 31.0):
        world.arrive("z", 0.5, at=at)
    world.run(until=40)
    ends = [end for end, name in world.log if name == "z"]
    waits = [end - at - 0.5 for end, at in zip(ends, (5, 12, 23, 24, 31), strict=True)]
    turn = MEDIUM_S + LOOK_S
    assert max(waits) <= SLICE_S + first * turn, waits
    assert max(waits[2:]) <= SLICE_S + turn, waits


def test_medium_grammars_of_others_do_not_starve_a_long_one():
    world = World(FairSchedule(make_lanes(2), 10_000))
    world.arrive("a", 10.0)
    for user in "bcdefg":
        for i in range(100):
            world.arrive(user, 1.9, at=i * 0.1)
    world.run(until=13)
    assert "a" in [name for _, name in world.log]


def test_a_running_grammar_passes_none_that_waits():
    """Else two users who always have long ones keep the slow lane for ever."""
    schedule = FairSchedule((Lane(3, 2, SLICE_S), Lane(2, 1, MEDIUM_S), Lane(1, 1)), 1000)
    first, second, other = Job(0, lane=2), Job(0, lane=1), Job(0, lane=2)
    for job, user in ((first, "a"), (second, "a"), (other, "z")):
        schedule.add(job, user)
        if job is not other:
            assert schedule.take() is job
    schedule.finish(first, 10.0)
    assert schedule.may_continue(second, MEDIUM_S), "nobody waits for the medium lane"
    assert second.lane == 1
    assert schedule.take() is other
    schedule.finish(other, 10.0)
    assert schedule.may_continue(second, MEDIUM_S)
    assert second.lane == 2


def test_a_long_grammar_keeps_its_place_until_another_user_wants_it():
    world = World(FairSchedule(make_lanes(2), 1000))
    fill_lanes(world, "abcd", each=1)
    world.run()
    assert world.lost_s <= 4 * SLICE_S, "only in the fast lane"
    world = World(FairSchedule(make_lanes(2), 1000))
    fill_lanes(world, "abcd", each=1)
    world.arrive("z", 0.5, at=5.0)
    world.run()
    assert len(world.log) == 5
    assert 3 < world.lost_s < 6, "one long grammar begins again"


def test_debts_are_remembered_while_others_wait_and_savings_are_not():
    """C always waits. A comes back after each grammar and gets no more time than C. B comes late and catches up
    nothing."""
    world = World(FairSchedule((ONE, LAST), 1000))
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
    schedule, spent = FairSchedule((ONE, LAST), 1000), Counter[str]()
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
    schedule = FairSchedule((Lane(9, 9, SLICE_S), LAST), 1000)
    for _ in range(3):
        schedule.add(Job(0), "a")
    assert schedule.take() is not None
    schedule.add(later := Job(0), "b")
    assert schedule.take() is later


def test_a_user_that_fills_the_places_loses_its_own():
    schedule = FairSchedule((FAST, SLOW), 10)
    mine = [Job(0) for _ in range(12)]
    lost = [schedule.add(job, "a") for job in mine]
    assert lost[:10] == [None] * 10
    assert lost[10:] == [(mine[10], "a"), (mine[11], "a")]
    theirs = [Job(0) for _ in range(6)]
    taken = [schedule.add(job, "b") for job in theirs]
    assert taken == [(mine[place], "a") for place in (9, 8, 7, 6, 5)] + [(theirs[5], "b")]
    assert schedule.num_waiting == 10


def test_a_grammar_that_two_wait_for_comes_with_the_first_turn():
    schedule = FairSchedule((ONE, LAST), 1000)
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
    schedule = FairSchedule((Lane(9, 2, SLICE_S), LAST), 1000)
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
    schedule = FairSchedule((ONE, LAST), 1000)
    job = Job(0)
    schedule.add(job, "a")
    assert schedule.take() is job
    schedule.remove(job, "a")
    schedule.stop(job, SLICE_S)
    assert schedule.take() is None
    assert schedule._accounts == {}


def test_the_memory_of_debts_is_bounded():
    schedule = FairSchedule((Lane(2, 1, SLICE_S), LAST), 1000)
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
