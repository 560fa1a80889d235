"""A request that makes the engine grow is ended, and no request of another user."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path

import pytest

from engine.harness import Harness, alone
from tailrace.engine import cache_size, cgroup, memory
from tailrace.engine.memory import MIB, MemoryLimit
from tailrace.engine.sequence import Request
from tailrace.errors import OverloadedError
from tailrace.params import SamplingParams
from tailrace.wire.messages import Failed, Finished, Owner


@pytest.fixture
def harness(monkeypatch) -> Harness:
    monkeypatch.setattr(memory, "LOOK_S", 0.0)
    monkeypatch.setattr(memory, "SETTLE_S", 0.0)
    found = Harness()
    found.engine.memory_limit = found.engine.steps.outputs.memory_limit = MemoryLimit(64 * MIB)
    return found


def test_the_grower_is_ended_before_the_others_notice(harness: Harness, monkeypatch):
    """Planted: each token of one request holds 8 MiB more, for as long as the request lives."""
    slots = harness.engine.slots
    commit, commit_drawn = slots.commit, slots.commit_drawn
    hoards: dict[str, list[mmap]] = {}

    def grow(chosen):
        for sequence in harness.engine.running:
            if sequence.slot in chosen and sequence.request.id == "grower":
                piece = mmap(
                    -1, 8 * MIB, MAP_PRIVATE | MAP_ANONYMOUS
                )  # of the system, not of what this process has freed before
                piece.write(b"x" * (8 * MIB))
                hoards.setdefault("grower", []).append(piece)

    monkeypatch.setattr(slots, "commit", lambda chosen, tokens: (grow(list(chosen)), commit(chosen, tokens)))
    monkeypatch.setattr(slots, "commit_drawn", lambda slot, token: (grow([slot]), commit_drawn(slot, token)))
    fail_request, late = harness.engine.lifecycle.fail_request, []

    def freed(request, error):
        hoards.pop(request.id, None)
        fail_request(request, error)
        harness.submit("late", [9], max_tokens=2)  # while there is no room for this user
        harness.submit("other", [9], max_tokens=2, ignore_eos=True, user="other")
        late.append(request.id)

    monkeypatch.setattr(harness.engine.lifecycle, "fail_request", freed)
    for id, prompt in (("a", [5, 6, 7]), ("grower", [1]), ("b", [8])):
        harness.submit(id, prompt, max_tokens=60, ignore_eos=True)
    stories = harness.run(400)
    assert late == ["grower"]
    end = stories["grower", 0, 0].end
    assert isinstance(end, Failed)
    assert end.code == "overloaded"
    assert 2 < len(stories["grower", 0, 0].tokens) < 20
    refused = stories["late", 0, 0].end
    assert isinstance(refused, Failed)
    assert refused.code == "overloaded"
    assert isinstance(stories["other", 0, 0].end, Finished)
    for id, prompt in (("a", [5, 6, 7]), ("b", [8])):
        assert isinstance(stories[id, 0, 0].end, Finished)
        assert stories[id, 0, 0].tokens == alone(prompt, 60)
    harness.submit("after", [9], max_tokens=2, ignore_eos=True)
    assert isinstance(harness.run(100)["after", 0, 0].end, Finished)


def test_what_nobody_holds_does_not_refuse_for_ever(harness: Harness):
    leak = bytearray(b"x" * (100 * MIB))
    assert harness.engine.memory_limit.check([]) is None
    assert not harness.engine.memory_limit.over
    harness.submit("a", [5], max_tokens=2, ignore_eos=True)
    assert isinstance(harness.run(100)["a", 0, 0].end, Finished)
    del leak


# ---- several users


class World:
    """A memory limit over requests of several users. The process is as large as the test says."""

    def __init__(self, monkeypatch, limit: int = 640 * MIB):
        monkeypatch.setattr(memory, "LOOK_S", 0.0)
        monkeypatch.setattr(memory, "SETTLE_S", 0.0)
        monkeypatch.setattr(memory, "read_resident_bytes", lambda: self.grown)
        self.grown = 0
        self.limit = MemoryLimit(limit)
        self.requests: list[Request] = []

    def hold(self, user: str, *sizes: int, weight: int = 1) -> None:
        """Add requests of the user that hold so many MiB each."""
        for size in sizes:
            owner = Owner(user=user, weight=weight)
            number = len(self.requests)
            self.requests.append(Request(b"", f"{user}{number}", 0, SamplingParams(), (0, number), 10, owner=owner))
            self.requests[-1].grown_bytes = size * MIB

    def judge(self, grown: int) -> str | None:
        """Let the process hold so many MiB. Return the request that must end."""
        self.grown = grown * MIB
        found = self.limit.check(self.requests)
        return found and found[0].id

    def accepts(self, user: str, weight: int = 1) -> bool:
        try:
            self.limit.check_place(Owner(user=user, weight=weight))
        except OverloadedError:
            return False
        return True


def test_the_user_who_holds_most_gives_way(monkeypatch):
    """B's only request is the largest one. A's many small ones together hold more."""
    world = World(monkeypatch)
    world.hold("b", 60)
    world.hold("a", *[40] * 15, 45)
    assert world.judge(630) is None
    assert world.accepts("a")
    assert world.judge(700) == "a16", "A's largest one"
    assert not world.accepts("a")
    assert world.accepts("b")
    assert world.accepts("new")
    while len(world.requests) > 2:
        ended = world.judge(700)
        world.requests = [request for request in world.requests if request.id != ended]
    assert {request.owner.user for request in world.requests} == {"a", "b"}, "no request of B was ended"


def test_memory_is_divided_by_weight(monkeypatch):
    world = World(monkeypatch)
    world.hold("heavy", 400, weight=3)
    world.hold("light", 200)
    assert world.judge(650) == "light1"
    assert world.accepts("heavy", 3)
    assert not world.accepts("light")


def test_who_holds_next_to_nothing_loses_nothing_for_what_others_left(monkeypatch):
    """The memory of a request that has ended is not free yet."""
    world = World(monkeypatch)
    world.hold("b", 5)
    assert world.judge(700) is None
    assert world.accepts("b")
    assert world.judge(970) == "b0", "far beyond the limit anybody gives way"
    world.requests.clear()
    assert world.judge(700) is None
    assert not world.limit.over, "nobody holds it, so it counts as the engine's own"


def test_with_a_small_limit_no_request_ends_for_what_the_engine_takes(monkeypatch):
    """At first uses the engine itself grows by some MiB."""
    world = World(monkeypatch, limit=8 * MIB)
    world.hold("b", 0)
    assert world.judge(30) is None
    assert world.accepts("b")
    world.hold("a", 1)
    assert world.judge(30) == "a1", "who holds a part gives way"
    world.requests.pop()
    assert world.judge(80) == "b0", "far beyond the limit anybody gives way"


def test_at_the_limit_users_hold_at_most_the_limit_again(monkeypatch):
    world = World(monkeypatch)
    world.hold("a", 600)
    for number in range(memory.MAX_USERS - 1):
        assert world.accepts(f"user{number}")
        world.hold(f"user{number}", 10)
        assert world.judge(700) == "a0"
    assert not any(world.accepts(f"user{number}") for number in range(memory.MAX_USERS - 1)), "each holds its part"
    assert not world.accepts("one more")


def test_large_parameters_count(monkeypatch):
    world = World(monkeypatch)
    world.hold("a", 0)
    world.requests[0].params = SamplingParams(logit_bias=dict.fromkeys(range(50000), 1.0))
    world.limit.add(world.requests[0])
    assert memory.estimate_bytes(world.requests[0]) > 2 * MIB


def test_a_promise_of_more_than_there_is_does_not_refuse_everybody():
    assert MemoryLimit(promised=1 << 50).limit == 256 * MIB


def group(folder: Path, limit: object, used: int, dropped: int, version: int) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    entry = "inactive_file" if version == 2 else "total_inactive_file"
    (folder / "memory.stat").write_text(f"anon 1\n{entry} {dropped}\n")


def test_a_container_has_what_its_groups_leave(tmp_path, monkeypatch):
    mount, membership = tmp_path / "cgroup", tmp_path / "self"
    monkeypatch.setattr(cgroup.measure_headroom, "__defaults__", (mount, membership))
    assert cgroup.measure_headroom() is None, "no groups at all"
    membership.write_text("0::/pod/box\n")
    assert cgroup.measure_headroom() is None
    group(mount / "pod" / "box", "max", 50 * MIB, 0, 2)
    assert cgroup.measure_headroom() is None
    group(mount / "pod", 900 * MIB, 600 * MIB, 100 * MIB, 2)
    assert cache_size.measure_available_memory() == 400 * MIB, (
        "a group above it counts as well; what may be dropped is not lost"
    )
    assert MemoryLimit().limit == 200 * MIB, "half of it, where that is less than the floor"
    assert MemoryLimit(promised=1 << 50).limit == 200 * MIB
    membership.write_text("0::/../../machine/path\n")
    group(mount, 100 * MIB, 150 * MIB, 0, 2)
    assert cgroup.measure_headroom() == 0, "what is mounted is the container's own, and it is over"
    membership.write_text("9:cpu,memory:/box\n4:pids:/box\n")
    group(mount / "memory" / "box", 700 * MIB, 100 * MIB, 0, 1)
    group(mount / "memory", 1 << 62, 100 * MIB, 0, 1)
    assert cache_size.measure_available_memory() == 600 * MIB
