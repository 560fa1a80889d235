"""Users share the engine: the least served is next, one user alone is served as ever, and nobody waits for long."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.combinations import EOS, TOKEN_BYTES, VOCAB
from engine.first_come import FirstCome
from engine.harness import Harness
from engine.mixes import alike, crowd
from tailrace.config import GrammarConfig, SchedulerConfig
from tailrace.engine import lifecycle, shares
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.plan import Plan
from tailrace.engine.scheduler import plan_step
from tailrace.engine.sequence import Phase, Request, Sequence
from tailrace.engine.shares import LEAD, MAX_DEBTORS, MOST_SERVICE, Share, Shares, take_turns
from tailrace.errors import OverloadedError
from tailrace.grammar.service import Grammars
from tailrace.params import SamplingParams
from tailrace.wire.messages import Owner

USERS = ("a", "b", "c")
BLOCK = 4


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
    yield made
    made.close()


def make_sequence(user: str, arrival: int, priority: int = 0, running: bool = False, length: int = 8) -> Sequence:
    """A sequence of so many tokens, of which 4 are the prompt."""
    request = Request(b"", str(arrival), 0, SamplingParams(), (priority, arrival), 1000, owner=Owner(user=user))
    sequence = Sequence(request, 0, arrival, 4, list(range(length)), Phase.RUNNING if running else Phase.WAITING)
    request.sequences.append(sequence)
    return sequence


# ---- virtual times


class Ledger:
    """The rule in plain words: each active user's tokens, and the debts of the others."""

    def __init__(self) -> None:
        self.active: dict[str, int] = {}
        self.gone: dict[str, int] = {}
        self.most = 0

    def read(self) -> dict[str, int]:
        return {user: max(tokens, self.most - LEAD) for user, tokens in self.active.items()}

    def enter(self, user: str) -> None:
        if user not in self.active:
            self.active[user] = max(self.gone.get(user, 0), min(self.read().values(), default=0))

    def leave(self, user: str) -> None:
        self.gone[user] = self.active.pop(user)
        if not self.active:
            self.gone, self.most = {}, 0

    def charge(self, user: str, tokens: int) -> None:
        self.active[user] = self.read()[user] + tokens
        self.most = max(self.most, self.active[user])


MOVES = st.lists(st.tuples(st.sampled_from(USERS), st.sampled_from(("enter", "leave", "charge")), st.integers(0, 5000)))


def check_ledger(moves: list[tuple[str, str, int]]) -> None:
    """Compare the shares with the ledger after each move, as far as the move is possible."""
    found, ledger = Shares(), Ledger()
    for user, move, tokens in moves:
        if (move == "enter") == (user in ledger.active):
            continue
        for table in (found, ledger):
            getattr(table, move)(user, *([tokens] if move == "charge" else []))
        served = {user: share.tokens for user, share in found.read().items()}
        assert served == ledger.read()
        assert not served or max(served.values()) - min(served.values()) <= LEAD
    for user in list(ledger.active):
        found.leave(user)
    assert found.read() == {}
    found.enter("d")
    assert found.read() == {"d": Share()}, "without requests all is forgotten"


@given(MOVES)
def test_shares_are_those_of_the_ledger(moves: list[tuple[str, str, int]]):
    check_ledger(moves)


@pytest.mark.parametrize("fault", ["credit", "no debt", "no lead"])
def test_planted_faults_of_shares_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch):
    moves = [("a", "enter", 0), ("a", "charge", 5000), ("b", "enter", 0), ("b", "charge", 9), ("b", "leave", 0)]
    moves += [("b", "enter", 0), ("a", "charge", 5000), ("a", "charge", 5000), ("c", "enter", 0)]
    check_ledger(moves)
    if fault == "credit":
        monkeypatch.setattr(Shares, "_find_least", lambda self: 0)
    elif fault == "no debt":
        leave = Shares.leave
        monkeypatch.setattr(Shares, "leave", lambda self, user: (leave(self, user), self._debts.clear()))
    else:
        monkeypatch.setattr(shares, "LEAD", 10**9)
    with pytest.raises(AssertionError):
        check_ledger(moves)


def test_nobody_owes_anything_once_nobody_waits():
    found = Shares()
    for user, tokens in (("a", 700), ("b", 20), ("c", 3000)):
        found.enter(user)
        found.charge(user, tokens)
    found.add_output("b", 5)
    found.leave("c")
    found.level()
    found.enter("c")
    found.enter("d")
    assert {share.tokens for share in found.read().values()} == {3000 + 700}
    assert found.read()["b"].service == 5, "tokens still pay for preemptions"


def test_a_user_who_comes_back_gains_nothing():
    found = Shares()
    found.enter("a")
    found.charge("a", 700)
    found.enter("b")
    assert found.read()["b"].tokens == 700, "b was away"
    found.charge("b", 50)
    found.leave("b")
    found.charge("a", 20)
    found.enter("b")
    assert found.read()["b"].tokens == 750, "a debt is kept"
    found.leave("b")
    found.charge("a", 100)
    found.enter("b")
    assert found.read()["b"].tokens == 820, "a has caught up"


@given(MOVES, st.integers(1, 100))
def test_equal_weights_are_as_none(moves: list[tuple[str, str, int]], weight: int):
    """Virtual times are those of weight 1, divided exactly, with what is forgotten too."""
    plain, weighted, active = Shares(), Shares(), set[str]()
    for user, move, tokens in moves:
        if (move == "enter") == (user in active):
            continue
        if move == "enter":
            plain.enter(user)
            weighted.enter(user, weight)
        for table in (plain, weighted) if move != "enter" else ():
            getattr(table, move)(user, *([tokens] if move == "charge" else []))
        active ^= {user} if move != "charge" else set()
        served = {user: share.tokens for user, share in plain.read().items()}
        assert {user: share.tokens * weight for user, share in weighted.read().items()} == served


@pytest.mark.parametrize("weight", [1, 3, 7])
def test_users_get_tokens_by_weight(weight: int):
    found = Shares()
    found.enter("light")
    found.enter("heavy", weight)
    got = {"light": 0, "heavy": 0}
    for _ in range(600):
        table = found.read()
        first = min(table, key=lambda user: table[user])
        found.take_turn(first, 5)
        got[first] += 5
    assert abs(got["heavy"] - weight * got["light"]) <= 5 * weight


def test_nobody_gets_more_than_lead_tokens_in_a_row_for_a_weight():
    found = Shares()
    found.enter("heavy", 4)
    found.enter("light")
    found.charge("light", 10 * LEAD)
    found.charge("heavy", LEAD)
    assert found.read()["heavy"].tokens == found.read()["light"].tokens


def test_a_full_line_has_places_by_weight():
    found = Shares()
    for _ in range(8):
        found.enter("light")
    for _ in range(5):
        found.check_place("heavy", 8, 3)
        found.enter("heavy", 3)
    found.check_place("heavy", 8, 3)  # 8 · 3/4
    found.enter("heavy", 3)
    with pytest.raises(OverloadedError, match="6 of them of this user"):
        found.check_place("heavy", 8, 3)
    with pytest.raises(OverloadedError, match="8 of them of this user"):
        found.check_place("light", 8)


# ---- the order of users


@given(
    st.lists(st.tuples(st.sampled_from(USERS), st.integers(0, 1), st.booleans()), max_size=25),
    st.lists(st.integers(0, 40), min_size=26, max_size=26),
    st.tuples(*[st.integers(0, 60)] * 3),
)
def test_the_least_served_user_is_next(asked: list[tuple[str, int, bool]], costs: list[int], served: tuple[int, ...]):
    sequences = [make_sequence(user, place, priority, runs) for place, (user, priority, runs) in enumerate(asked)]
    sequences.sort(key=lambda sequence: sequence.request.order)
    prefills = [sequence for sequence in sequences if sequence.phase is Phase.RUNNING]
    waiting = [sequence for sequence in sequences if sequence.phase is Phase.WAITING]
    table = {user: Share(tokens) for user, tokens in zip(USERS, served, strict=True)}
    rest, turns = [*prefills, *waiting], count(1)
    for sequence, cost in zip(take_turns(prefills, waiting, table, set()), costs, strict=False):
        heads = {other.user: other for other in reversed(rest)}.values()
        assert sequence in heads, "each user's own order stays"
        assert sequence is min(heads, key=lambda head: (head.request.order[0], table[head.user], head.request.order))
        rest.remove(sequence)
        table[sequence.user] = Share(table[sequence.user].tokens + cost, next(turns))
    assert not rest


def test_a_closed_user_gets_no_further_turn():
    waiting = [make_sequence(user, place) for place, user in enumerate("aab")]
    closed: set[str] = set()
    seen = []
    for sequence in take_turns([], waiting, {"a": Share(), "b": Share(5)}, closed):
        seen.append(sequence.user)
        closed.add("a")
    assert seen == ["a", "b"]


def test_equal_users_take_turns_by_their_last_one():
    """At the bound of LEAD virtual times are equal; then nobody's many requests come before another's one."""
    waiting = [make_sequence(user, place) for place, user in enumerate("aaab")]
    seen, turns = [], count(1)
    table = {"a": Share(), "b": Share()}
    for sequence in take_turns([], waiting, table, set()):
        seen.append(sequence.user)
        table[sequence.user] = Share(0, next(turns))
    assert seen == ["a", "b", "a", "a"]


def test_a_turn_makes_a_user_the_last_among_equals():
    found = Shares()
    for user in "ab":
        found.enter(user)
    found.take_turn("a", 0)
    assert found.read()["b"] < found.read()["a"]
    found.take_turn("b", 0)
    assert found.read()["a"] < found.read()["b"]


def test_a_step_is_shared_between_the_prompts_of_users():
    """A has two prompts and B one. The step has tokens for two."""
    cache = BlockCache(64, BLOCK)
    running = [make_sequence(user, place, running=True) for place, user in enumerate("aab")]
    plan = plan_step(running, [], cache, SchedulerConfig(), (8, 16), {"a": Share(), "b": Share()})
    assert plan.work == [(running[0], 8), (running[2], 8)]


# ---- one user


def compare_plans(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compare each plan with that of the old rule; return whether they were equal."""
    same: list[bool] = []

    def compared(running, waiting, cache, limits, room, served) -> Plan:
        old = FirstCome(running, waiting, cache, limits).make(*room)
        new = plan_step(running, waiting, cache, limits, room, served)
        same.append(old == new)
        return new

    monkeypatch.setattr(lifecycle, "plan_step", compared)
    return same


def run_long_mix(seed: int, users: tuple[str, ...], **options) -> Harness:
    """Prompts of any length that share beginnings, in a world that may be too small for them."""
    rng = random.Random(seed)
    harness = Harness(
        block_size=BLOCK,
        num_blocks=rng.choice([70, 100, 400]),
        max_num_batched_tokens=rng.choice([8, 24, 64]),
        max_num_seqs=rng.choice([2, 5, 8]),
        **options,
    )
    for place in range(rng.randint(4, 20)):
        prompt = [rng.randrange(3)] * rng.choice([1, 5, 20, 60]) + [place] * rng.choice([1, 9, 130])
        params = {"max_tokens": rng.choice([1, 20, 60]), "n": rng.choice([1, 1, 2]), "seed": place, "temperature": 0.7}
        harness.submit(f"r{place}", prompt, user=users[place % len(users)], priority=rng.randrange(2), **params)
        for _ in range(rng.choice([0, 0, 1, 30])):
            harness.step()
    harness.run()
    return harness


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_one_user_gets_the_plans_of_first_come_first_served(grammars, seed, overlap, monkeypatch):
    same = compare_plans(monkeypatch)
    crowd(seed, grammars, overlap=overlap)
    run_long_mix(seed, ("a",), overlap=overlap)
    assert len(same) > 20
    assert all(same)


def test_plans_of_several_users_differ(monkeypatch):
    """The comparison would see it."""
    same = compare_plans(monkeypatch)
    for seed in range(6):
        run_long_mix(seed, USERS)
    assert not all(same)


# ---- several users: same tokens


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_users_change_no_token(grammars, seed, overlap):
    plain, _ = crowd(seed, grammars, overlap=overlap)
    for users in (USERS, ("a", "a", "b")):
        assert alike(plain, crowd(seed, grammars, users, overlap=overlap)[0])


@pytest.mark.parametrize("seed", range(12))
def test_users_change_no_token_of_long_prompts(seed):
    stories = [run_long_mix(seed, users).stories for users in (("",), USERS, ("a", "a", "a", "b"))]
    told = [{name: (story.tokens, story.end.reason) for name, story in one.items()} for one in stories]
    assert told[0] == told[1] == told[2]


def test_debts_are_bounded_and_the_largest_ones_stay():
    shares = Shares()
    shares.enter("stays")
    for number in range(3 * MAX_DEBTORS):
        user = f"user {number}"
        shares.enter(user)
        shares.charge(user, 1 + number)
        shares.leave(user)
    assert len(shares._debts) == MAX_DEBTORS
    assert f"user {3 * MAX_DEBTORS - 1}" in shares._debts


def test_a_user_with_nothing_in_a_full_line_finds_a_place():
    shares = Shares()
    for number in range(4):
        shares.enter(f"user {number}")
    shares.check_place("another", 4)
    with pytest.raises(OverloadedError, match="1 of them of this user"):
        shares.check_place("user 1", 4)


def test_service_is_counted_per_user_and_bounded():
    found = Shares()
    found.enter("a")
    found.add_output("a", 40)
    assert found.read()["a"] == Share(40, 0, 40)
    found.spend_service("a", 32)
    assert found.read()["a"].service == 8
    found.spend_service("a", 32)
    assert found.read()["a"].service == 0, "there are no debts of service"
    found.add_output("a", 10**6)
    assert found.read()["a"].service == MOST_SERVICE
    found.enter("a")
    found.add_output("a", 10**6)
    assert found.read()["a"].service == 2 * MOST_SERVICE, "for each request"
    found.enter("b")
    for _ in range(2):
        found.leave("a")
    found.enter("a")
    assert found.read()["a"].service == 0, "a user who comes back has none"
