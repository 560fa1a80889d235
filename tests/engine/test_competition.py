"""Several users at once: a user with little demand waits for few tokens of others, and the engine stays busy."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.harness import Harness, alone
from engine.test_shares import USERS, make_sequence, run_long_mix
from examples import examples
from tailrace.config import SchedulerConfig
from tailrace.engine import admission, lifecycle, scheduler
from tailrace.engine import plan as plans
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.plan import Plan
from tailrace.engine.scheduler import plan_step
from tailrace.engine.sequence import Sequence
from tailrace.engine.shares import Share, Shares
from tailrace.errors import OverloadedError
from tailrace.wire.messages import Failed, Owner

BLOCK = 4
TOKENS = 64  # of a step


def wait_for_first_token(harness: Harness, id: str, limit: int = 3000) -> int:
    """Step until the request has a token. Return the number of steps."""
    for steps in range(1, limit):
        harness.step()
        if harness.stories[id, 0, 0].tokens:
            return steps
    raise AssertionError("the request was never served")


# ---- one user's load beside another user's small request

LOADS: dict[str, dict] = {
    "long generations in all slots": {"prompt": 5, "max_tokens": 300},
    "long prompts": {"prompt": 400, "max_tokens": 2},
    "long prompts and generations": {"prompt": 100, "max_tokens": 200},
    "many short requests": {"prompt": 3, "max_tokens": 3},
    "many copies": {"prompt": 20, "max_tokens": 150, "n": 4},
}
WORLDS: dict[str, dict] = {
    "roomy": {"max_num_seqs": 8, "num_blocks": 1000},
    "few slots": {"max_num_seqs": 4, "num_blocks": 1000},
    "few blocks": {"max_num_seqs": 8, "num_blocks": 120},
    "small steps": {"max_num_seqs": 4, "num_blocks": 1000, "max_num_batched_tokens": 16},
}
# An own prefill in one slot, one turn, and a chunk of decodes.
MOST_STEPS = 400 // 16 + 20


def measure_wait(load: str, world: str, before: int, users: tuple[str, str] = ("a", "b")) -> int:
    """Steps until B's short request has its first token beside thirty requests of A."""
    options = {"max_num_batched_tokens": TOKENS} | WORLDS[world]
    harness = Harness(block_size=BLOCK, **options)
    params = dict(LOADS[load])
    length = params.pop("prompt")
    for place in range(30):
        harness.submit(f"a{place}", [place] * length, user=users[0], ignore_eos=True, **params)
    for _ in range(before):
        harness.step()
    harness.submit("b", [90, 91, 92], user=users[1], max_tokens=4)
    steps = wait_for_first_token(harness, "b")
    while harness.stories["b", 0, 0].end is None:
        harness.step()
    assert harness.stories["b", 0, 0].tokens == alone([90, 91, 92], 4)
    for place in range(30):
        said = harness.stories[f"a{place}", 0, 0].tokens
        assert said == alone([place] * length, len(said))
    return steps


@pytest.mark.few
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("load", LOADS)
def test_a_small_request_waits_for_few_steps_of_another_user(load, world, overlap, monkeypatch):
    monkeypatch.setattr(Harness, "overlap", overlap)
    for before in (0, 40):
        assert measure_wait(load, world, before) <= MOST_STEPS


def test_without_shares_it_waits_long():
    """The bound would see it: both users under one name are served in order of arrival."""
    assert measure_wait("long generations in all slots", "few slots", 7, ("a", "a")) > 10 * MOST_STEPS


@pytest.mark.parametrize("fault", ["no preemption", "no turns"])
def test_planted_faults_of_waiting_are_seen(fault, monkeypatch):
    if fault == "no preemption":
        monkeypatch.setattr(scheduler, "list_yielding", lambda alive: [])
        assert measure_wait("long generations in all slots", "few slots", 7) > MOST_STEPS
    else:
        monkeypatch.setattr(scheduler, "take_turns", lambda prefills, waiting, *_: iter([*prefills, *waiting]))
        assert measure_wait("long prompts", "small steps", 7) > MOST_STEPS


def measure_second_wait(weight: int = 1) -> tuple[int, Harness]:
    """Steps until B's second request has its first token, while B's first one runs and A has the other slots."""
    harness = Harness(block_size=BLOCK, num_blocks=1000, max_num_seqs=8, max_num_batched_tokens=TOKENS)
    for place in range(30):
        owner = Owner(user="a", weight=weight)
        harness.submit(f"a{place}", [place] * 5, user=owner, max_tokens=200, ignore_eos=True)
    for _ in range(40):
        harness.step()
    for id in ("b0", "b1"):
        harness.submit(id, [90, 91, 92], user="b", max_tokens=150, ignore_eos=True)
        steps = wait_for_first_token(harness, id)
    return steps, harness


def test_a_user_gets_an_equal_part_of_the_slots(monkeypatch):
    """A keeps its own equal part: four of eight slots, and six if its weight is three."""
    assert measure_second_wait()[0] <= MOST_STEPS
    for weight, most in ((1, 4), (3, 2)):
        harness = measure_second_wait(weight)[1]
        for place in range(2, 20):
            harness.submit(f"b{place}", [90, 91, 92], user="b", max_tokens=150, ignore_eos=True)
        peak = 0
        for _ in range(40):
            harness.step()
            peak = max(peak, sum(sequence.user == "b" for sequence in harness.engine.running))
        assert peak == most
        harness.run()
        assert {tuple(harness.stories[f"b{place}", 0, 0].tokens) for place in range(20)} == {
            tuple(alone([90, 91, 92], 150))
        }
    monkeypatch.setattr(admission, "is_within_part", lambda left, sequence: left.held[sequence.user] == 0)
    assert measure_second_wait()[0] > 3 * MOST_STEPS, "the bound would see it"


def measure_wait_after_peace() -> int:
    """Steps until B's request has its first token. B had four streams and C one while there was room for all; then A
    fills the slots."""
    harness = Harness(block_size=BLOCK, num_blocks=4000, max_num_seqs=16, max_num_batched_tokens=TOKENS)
    for user, streams in (("b", 4), ("c", 1)):
        for place in range(streams):
            harness.submit(f"{user}{place}", [place] * 5, user=user, max_tokens=900, ignore_eos=True)
    for _ in range(300):
        harness.step()
    for place in range(40):
        harness.submit(f"a{place}", [place] * 5, user="a", max_tokens=300, ignore_eos=True)
    for _ in range(5):
        harness.step()
    harness.submit("late", [90, 91, 92], user="b", max_tokens=4)
    return wait_for_first_token(harness, "late")


def test_who_had_more_in_peace_owes_nothing(monkeypatch):
    """B is within its part of the slots, which is five, and waits for a few steps of the others."""
    assert measure_wait_after_peace() <= MOST_STEPS
    monkeypatch.setattr(Shares, "level", lambda self: None)
    assert measure_wait_after_peace() > MOST_STEPS


def test_a_long_prompt_shares_the_steps_with_a_short_one():
    """A's prompt takes 100 steps alone. B's needs one turn."""
    harness = Harness(max_num_batched_tokens=4, num_blocks=200)
    harness.submit("a", [1] * 400, user="a", max_tokens=2)
    for _ in range(3):
        harness.step()
    harness.submit("b", [2, 3, 4], user="b", max_tokens=2)
    assert wait_for_first_token(harness, "b") <= 3
    assert not harness.stories["a", 0, 0].tokens
    harness.run()


def test_long_prompts_are_begun_for_a_few_users_at_once(monkeypatch):
    monkeypatch.setattr(admission, "LONG", 20)
    harness = Harness(max_num_batched_tokens=8, num_blocks=2000, max_num_seqs=12)
    for place in range(10):
        harness.submit(f"r{place}", [place] * 100, user=f"u{place}", max_tokens=2)
    harness.submit("short", [11] * 8, user="short", max_tokens=2)
    most = 0
    while harness.engine.has_work:
        harness.step()
        most = max(most, sum(sequence.num_uncomputed > 20 for sequence in harness.engine.running))
        if not harness.stories["short", 0, 0].tokens:
            assert harness.engine.counters.steps < 20, "a short prompt does not wait for a long one"
    assert most == admission.MAX_LONG


# ---- preemption


def run_pings(service: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """B asks for one token again and again beside long generations of A in all slots. Return how often A was preempted,
    and B's requests."""
    monkeypatch.setattr(plans, "LEAST_SERVICE", service)
    monkeypatch.setattr(plans, "RECOMPUTED", 10**9)
    harness = Harness(max_num_seqs=3, num_blocks=400)
    for place in range(3):
        harness.submit(f"a{place}", [place] * 9, user="a", max_tokens=300, ignore_eos=True)
    pings = 0
    for step in range(600):
        harness.step()
        if step % 5 == 0 and not any(request.owner.user == "b" for request in harness.engine.requests.values()):
            harness.submit(f"b{pings}", [pings % 90], user="b", max_tokens=1)
            pings += 1
    harness.run()
    for place in range(3):
        assert harness.stories[f"a{place}", 0, 0].tokens == alone([place] * 9, 300)
    return harness.engine.counters.preemptions, pings


def test_each_preemption_costs_a_served_stretch(monkeypatch):
    """A's 900 tokens are at most 900 / 32 stretches."""
    preempted, pings = run_pings(32, monkeypatch)
    assert 3 <= preempted <= 900 // 32
    assert pings > preempted
    thrashed, _ = run_pings(0, monkeypatch)
    assert thrashed > 900 // 32, "the bound would see it"


def test_one_slot_is_shared_in_turns():
    harness = Harness(max_num_seqs=1, num_blocks=200)
    harness.submit("a", [1] * 9, user="a", max_tokens=400, ignore_eos=True)
    harness.step()
    harness.submit("b", [2] * 9, user="b", max_tokens=400, ignore_eos=True)
    gap, last = Counter[str](), Counter[str]()
    for _ in range(400):
        harness.step()
        for id in "ab":
            said = len(harness.stories[id, 0, 0].tokens)
            gap[id] = 0 if said > last[id] else gap[id] + 1
            last[id] = said
            assert gap[id] <= 200
    assert abs(last["a"] - last["b"]) <= 150
    assert harness.engine.counters.preemptions <= 12
    harness.run()
    assert harness.stories["a", 0, 0].tokens == alone([1] * 9, 400)
    assert harness.stories["b", 0, 0].tokens == alone([2] * 9, 400)


def hold(cache: BlockCache, user: str, arrival: int, blocks: int, priority: int = 0) -> Sequence:
    """A running sequence of so many full blocks; the next token needs one more."""
    sequence = make_sequence(user, arrival, priority, running=True, length=blocks * BLOCK + 1)
    cache.reserve(sequence, blocks * BLOCK)
    sequence.num_computed = blocks * BLOCK
    return sequence


@pytest.mark.parametrize(
    ("served", "priorities", "victims"),
    [
        ((0, 0), (0, 0), [2]),
        ((10, 0), (0, 0), [1]),
        ((0, 10), (0, 0), [2]),
        ((10, 0), (0, 1), [2]),
    ],
)
def test_the_user_with_the_largest_share_yields_blocks(served, priorities, victims):
    """A has the first two sequences, B the third. One block is missing for all three to go on."""
    cache = BlockCache(8, BLOCK)
    running = [hold(cache, "a", 0, 2, priorities[0]), hold(cache, "a", 1, 2, priorities[0])]
    running.append(hold(cache, "b", 2, 2, priorities[1]))
    table = {user: Share(tokens) for user, tokens in zip("ab", served, strict=True)}
    plan = plan_step(running, [], cache, SchedulerConfig(), (8, 512), table)
    assert [running.index(victim) for victim in plan.preempt] == victims
    assert [running.index(sequence) for sequence, _ in plan.work] == [i for i in range(3) if i not in victims]


@pytest.mark.parametrize(
    ("change", "preempts"),
    [
        ({}, True),
        ({"served": (5, 5)}, False),
        ({"priority": 1}, False),
        ({"service": 31}, False),
        ({"sampled": 0}, False),
        ({"runs": True}, False),
    ],
)
def test_who_is_preempted_for_a_user_without_a_running_sequence(change, preempts):
    at = {"served": (10, 5), "priority": 0, "sampled": 1, "service": 32, "runs": False} | change
    cache = BlockCache(64, BLOCK)
    running = [hold(cache, "a", 0, 9), hold(cache, "a", 1, 9)]
    for sequence in running:
        sequence.num_admitted = sequence.num_output - at["sampled"]
    if at["runs"]:
        running.append(hold(cache, "b", 2, 1))
    table = {user: Share(tokens, 0, at["service"]) for user, tokens in zip("ab", at["served"], strict=True)}
    waiting = [make_sequence("b", 9, at["priority"])]
    plan = plan_step(running, waiting, cache, SchedulerConfig(), (0, 512), table)
    assert plan.preempt == ([running[1]] if preempts else [])
    assert [sequence for sequence, _ in plan.admit] == (waiting if preempts else [])


def test_an_admitted_prompt_keeps_its_blocks():
    """A's prompt needs ten blocks more. B's, which is next, must leave them."""
    for blocks, admits in ((16, True), (15, False)):
        cache = BlockCache(blocks, BLOCK)
        prefill = make_sequence("a", 0, running=True, length=11 * BLOCK - 1)
        cache.reserve(prefill, BLOCK)
        prefill.num_computed, prefill.num_prompt = BLOCK, len(prefill.tokens)
        waiting = [make_sequence("b", 1, length=5 * BLOCK - 1)]
        table = {"a": Share(9), "b": Share()}
        plan = plan_step([prefill], waiting, cache, SchedulerConfig(), (8, 512), table)
        assert [sequence for sequence, _ in plan.admit] == (waiting if admits else [])
        assert (prefill, 10 * BLOCK - 1) in plan.work


def test_only_users_without_a_running_sequence_overtake_what_does_not_fit():
    cache = BlockCache(20, BLOCK)
    running = [hold(cache, "a", 0, 2), hold(cache, "c", 1, 2)]
    waiting = [make_sequence("a", 2, length=30 * BLOCK), make_sequence("b", 3), make_sequence("c", 4)]
    table = {user: Share(tokens) for user, tokens in zip("abc", (0, 5, 6), strict=True)}
    plan = plan_step(running, waiting, cache, SchedulerConfig(), (8, 512), table)
    assert [sequence for sequence, _ in plan.admit] == [waiting[1]]


def start_like(cache: BlockCache, user: str, arrival: int, victim: Sequence, blocks: int) -> Sequence:
    """A waiting sequence of so many blocks, which begins as the victim, whose blocks can be found."""
    cache.publish_blocks(victim)
    sequence = make_sequence(user, arrival)
    rest = blocks * BLOCK - 1 - victim.num_computed
    sequence.tokens = [*victim.tokens[: victim.num_computed], *range(500, 500 + rest)]
    assert len(cache.match_prefix(sequence)) == victim.num_computed // BLOCK
    return sequence


@pytest.mark.parametrize(("blocks", "preempts"), [(10, True), (11, False)])
def test_blocks_of_a_victim_that_are_used_again_are_counted(blocks: int, preempts: bool):
    """A's nine blocks and a free one are ten, although B begins with A's nine. C's block stays."""
    cache = BlockCache(11, BLOCK)
    running = [hold(cache, "a", 0, 9), make_sequence("c", 1, running=True, length=BLOCK)]
    cache.reserve(running[1], BLOCK)
    running[1].num_computed = BLOCK - 1
    waiting = [start_like(cache, "b", 2, running[0], blocks)]
    table = {user: Share(tokens, 0, 99) for user, tokens in zip("abc", (9, 0, 9), strict=True)}
    plan = plan_step(running, waiting, cache, SchedulerConfig(), (0, 512), table)
    assert plan.preempt == ([running[0]] if preempts else [])


def test_blocks_that_an_admitted_sequence_uses_are_not_free():
    """B begins with A's nine blocks. When A is preempted for C, they stay."""
    for blocks, preempts in ((3, True), (5, False)):
        cache = BlockCache(14, BLOCK)
        running = [hold(cache, "a", 0, 9)]
        waiting = [start_like(cache, "b", 1, running[0], 10), make_sequence("c", 2, length=blocks * BLOCK - 1)]
        table = {user: Share(tokens, 0, 99) for user, tokens in zip("abc", (9, 0, 1), strict=True)}
        plan = plan_step(running, waiting, cache, SchedulerConfig(), (1, 512), table)
        assert plan.preempt == (running if preempts else [])
        assert [sequence for sequence, _ in plan.admit] == waiting[: 1 + preempts]


def sum_charges(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], Harness]:
    """What each user is charged with."""
    charged, charge = Counter[str](), Shares.charge

    def noted(self: Shares, user: str, tokens: int) -> None:
        charged[user] += tokens
        charge(self, user, tokens)

    monkeypatch.setattr(Shares, "charge", noted)
    return charged, run_long_mix(seed, USERS, prefix_reuse=False)


@pytest.mark.parametrize("seed", [0, 2, 3, 5])
def test_tokens_are_charged_once(seed: int, monkeypatch):
    """Prompts and outputs, however often they are computed again."""
    charged, harness = sum_charges(seed, monkeypatch)
    expected = Counter[str]()
    counters = harness.engine.counters
    for (id, _, index), story in harness.stories.items():
        expected[USERS[int(id[1:]) % 3]] += len(story.tokens)
        assert index or story.tokens
    assert charged.total() == counters.generated_tokens + counters.prompt_tokens
    assert all(charged[user] > expected[user] for user in USERS)
    assert counters.preemptions or seed != 2


def test_cached_tokens_are_not_charged(monkeypatch):
    harness = Harness(block_size=BLOCK)
    seen = []
    for id in "ab":
        harness.submit(id, [1] * 40 + [2], user=id, max_tokens=3)
        while not harness.stories[id, 0, 0].tokens:
            harness.step()
        seen.append(harness.engine.lifecycle.shares.read()[id].tokens)
        harness.run()
    assert seen[0] - seen[1] == 40


# ---- work conservation


def check_busy(left_idle: list[str], running, waiting, cache, limits, room, served) -> Plan:
    """Note what the plan leaves undone although the step could do it."""
    plan = plan_step(running, waiting, cache, limits, room, served)
    slots, chunk = room
    admitted = [sequence for sequence, _ in plan.admit]
    planned = dict(plan.work)
    prompts = sum(tokens for sequence, tokens in plan.work if sequence.prefilling)
    spare = min(plan.spare, chunk - prompts)
    if plan.preempt or spare <= 0:
        return plan
    for sequence in running:
        if sequence not in planned and sequence.wanted is None:
            left_idle.append(f"{sequence.request.id} runs")
    slots -= sum((1 + len(sequence.forks)) * len(sequence.pair) for sequence in admitted)
    promised = sum(cache.blocks_for(len(s.tokens) + 1) for s in (*running, *admitted))
    free = cache.num_blocks - promised
    heads = {sequence.user: sequence for sequence in reversed(waiting) if sequence not in admitted}
    fitting = [
        1 + len(head.forks) <= slots and cache.blocks_for(len(head.tokens) + 1) <= free for head in heads.values()
    ]
    if heads and all(fitting):
        left_idle.append("every user's next request would fit")
    return plan


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 3))
def test_the_engine_leaves_no_work_that_fits(seed: int, users: int):
    left_idle: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "plan_step", partial(check_busy, left_idle))
        run_long_mix(seed, USERS[:users])
    assert not left_idle


def test_an_idle_engine_would_be_seen(monkeypatch):
    left_idle: list[str] = []
    monkeypatch.setattr(lifecycle, "plan_step", partial(check_busy, left_idle))
    monkeypatch.setattr(scheduler, "admit_waiting", lambda left, sequence: left)
    harness = Harness()
    harness.submit("a", [1, 2], user="a", max_tokens=2)
    harness.submit("b", [1, 2], user="b", max_tokens=2)
    harness.step()
    assert left_idle


# ---- equal service


def test_users_with_many_requests_get_equal_service():
    """A has five times as many requests as B. While both have some, they get the same number of tokens."""
    rng = random.Random(1)
    harness = Harness(max_num_seqs=4, num_blocks=400)
    for place in range(120):
        user = "b" if place % 6 == 5 else "a"
        harness.submit(f"{user}{place}", [place % 90] * rng.randint(1, 40), user=user, max_tokens=rng.randint(1, 30))
    while any(sequence.user == "b" for sequence in harness.engine.waiting):
        harness.step()
    got = Counter[str]()
    for (id, *_), story in harness.stories.items():
        got[id[0]] += len(story.tokens)
    assert 0.7 < got["a"] / got["b"] < 1.5
    harness.run()


# ---- places in the waiting line


def fill(most: int, asks: str) -> dict[str, int]:
    """Who of these users' requests, one letter each, is refused."""
    harness = Harness(max_waiting=most)
    for place, user in enumerate(asks):
        harness.submit(f"{user}{place}", [1], user=user, max_tokens=1)
    refused = [id for (id, *_), story in harness.run().items() if isinstance(story.end, Failed)]
    assert all(harness.stories[id, 0, 0].end.code == "overloaded" for id in refused)
    return Counter(id[0] for id in refused)


@pytest.mark.parametrize(
    ("asks", "refused"),
    [
        ("aaaa", {}),
        ("aaaaaa", {"a": 2}),
        ("aaaaaab", {"a": 2}),
        ("aaaabbb", {"b": 1}),
        ("aaaabbbcc", {"b": 1, "c": 1}),
        ("aabbaab", {"a": 2, "b": 1}),
    ],
)
def test_a_full_line_is_full_for_those_who_fill_it(asks: str, refused: dict[str, int]):
    assert fill(4, asks) == refused


def test_no_place_is_no_place():
    assert fill(0, "ab") == {"a": 1, "b": 1}


def test_places_are_free_again():
    """After every kind of end: admitted, aborted while it waited, refused."""
    line = Shares()
    line.enter("a")
    line.check_place("b", 2)
    line.enter("b")
    with pytest.raises(OverloadedError, match="2 requests are waiting, 1 of them of this user; try again later"):
        line.check_place("a", 2)
    line.begin("b")
    line.check_place("a", 2)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_left_of_users(seed: int):
    harness = run_long_mix(seed, USERS)
    table = harness.engine.lifecycle.shares
    assert (table.read(), table.waiting, table.several) == ({}, {}, False)


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_prompts_have_a_part_of_steps_that_decodes_fill(overlap, monkeypatch):
    """The budget has fewer tokens than there are slots, so A's decodes could take all of it."""
    monkeypatch.setattr(Harness, "overlap", overlap)

    def wait() -> int:
        harness = Harness(max_num_seqs=16, num_blocks=1000, max_num_batched_tokens=8)
        for place in range(16):
            harness.submit(f"a{place}", [place] * 3, user="a", max_tokens=200, ignore_eos=True)
        for _ in range(40):
            harness.step()
        harness.submit("b", [90] * 9, user="b", max_tokens=2)
        steps = wait_for_first_token(harness, "b")
        harness.run()
        assert harness.engine.counters.generated_tokens == 16 * 200 + 2
        return steps

    assert wait() <= 9
    monkeypatch.setattr(scheduler, "PROMPT_PART", 10**9)
    assert wait() > 100, "the bound would see it"
