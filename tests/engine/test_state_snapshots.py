"""A model with a state per sequence continues from cached prefixes, and says what it says when it runs alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine import mixes
from engine.combinations import DRAFTERS, EOS, TOKEN_BYTES
from engine.combinations import VOCAB as LETTERS
from engine.harness import VOCAB, Fickle, Harness, alone, script
from engine.mixes import Told
from engine.stateful_script import StatefulScript
from tailrace.config import CacheConfig, GrammarConfig
from tailrace.engine import state_snapshots
from tailrace.engine.cache_size import num_blocks, num_snapshots
from tailrace.engine.device import Device
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.model_memory import plan_states
from tailrace.engine.sequence import Sequence
from tailrace.engine.state_snapshots import EVERY_OUTPUT, LEAST, TAIL, StateSnapshots
from tailrace.engine.token_bytes import TokenBytes
from tailrace.errors import ConfigError
from tailrace.grammar.service import Grammars
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Abort, Owner

BLOCK = 16
NAMES = [name for name in DRAFTERS if name != "dense"]
STEM = [random.Random(7).randrange(VOCAB - 2) for _ in range(200)]


def prompt_of(seed: int, length: int) -> list[int]:
    """A prompt that begins as the others do, and differs from some position on."""
    rng = random.Random(seed)
    return (STEM[: rng.choice([0, 20, 70, 150])] + [rng.randrange(VOCAB - 2) for _ in range(length)])[:length]


def make_harness(**options: Any) -> Harness:
    return Harness(StatefulScript(VOCAB, script), **options)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots everywhere, so that short prompts meet them."""
    for name, value in (("LEAST", 1), ("TAIL", 1), ("EVERY_PROMPT", 2 * BLOCK), ("EVERY_OUTPUT", BLOCK)):
        monkeypatch.setattr(state_snapshots, name, value)


def run_crowd(seed: int, overlap: str) -> int:
    """A random crowd gets what each request gets alone. Return how many tokens came from cached prefixes."""
    rng = random.Random(seed)
    drafter = rng.choice([None, 0.6])
    jobs = [
        (prompt_of(rng.randrange(4), rng.randint(1, 110)), rng.randint(1, 40), rng.randint(1, 3)) for _ in range(14)
    ]
    stories = [prompt + alone(prompt, count) for prompt, count, _ in jobs]
    harness = make_harness(
        num_blocks=rng.choice([14, 24, 80]),
        max_num_seqs=rng.choice([3, 6]),
        max_num_batched_tokens=rng.choice([5, 24, 200]),
        state_snapshots=rng.choice([1, 2, 5, 40]),
        overlap=overlap,
        drafter=None if drafter is None else lambda _: Fickle(stories, drafter),
    )
    aborted: set[str] = set()
    for i, (prompt, count, n) in enumerate(jobs):
        harness.submit(f"r{i}", prompt, max_tokens=count, n=n, ignore_eos=True, priority=rng.randrange(3))
        for _ in range(rng.choice([0, 1, 4, 30])):
            harness.step()
        if rng.random() < 0.2 and (victim := f"r{rng.randint(0, i)}", 0) not in harness.closed:
            harness.engine.abort(Abort(victim, 0))
            aborted.add(victim)
    told = harness.run()
    for i, (prompt, count, n) in enumerate(jobs):
        if f"r{i}" not in aborted:
            for index in range(n):
                assert told[f"r{i}", 0, index].tokens == alone(prompt, count), (seed, i)
    return harness.engine.stats().cached_tokens


def run_crowds(overlap: str) -> int:
    """Some crowds."""
    return sum(run_crowd(seed, overlap) for seed in range(25))


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.usefixtures("many")
def test_crowds_get_what_each_request_gets_alone(overlap):
    assert run_crowds(overlap) > 500


@pytest.mark.long
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("first", range(100, 700, 100))
@pytest.mark.usefixtures("many")
def test_many_crowds_get_what_each_request_gets_alone(overlap, first):
    for seed in range(first, first + 100):
        run_crowd(seed, overlap)


# ---- with everything that a request may ask for


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], LETTERS)
    yield made
    made.close()


def run_mix(grammars: Grammars, seed: int, runner: type, **options: Any) -> dict[tuple[str, int, int], Told]:
    """What a crowd with grammars, bans, guidance, mirostat and more is told by this kind of runner."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mixes, "ScriptedRunner", runner)
        return mixes.crowd(seed, grammars, prefix_reuse=True, **options)[0]


def check_mix(grammars: Grammars, seed: int, overlap: str) -> bool:
    plain = run_mix(grammars, seed, ScriptedRunner, overlap="off")
    texts = [[*prompt, *story.tokens] for story in plain.values() for prompt in mixes.PROMPTS]
    drafter = DRAFTERS[NAMES[seed % len(NAMES)]](texts)
    found = run_mix(
        grammars, seed, StatefulScript, overlap=overlap, state_snapshots=1 + seed % 7, drafter=drafter, rule="exact"
    )
    return mixes.alike(plain, found)


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.usefixtures("many")
def test_what_is_asked_for_does_not_depend_on_snapshots(grammars, overlap):
    assert [seed for seed in range(12) if not check_mix(grammars, seed, overlap)] == []


@pytest.mark.long
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("first", range(100, 400, 50))
@pytest.mark.usefixtures("many")
def test_what_many_ask_for_does_not_depend_on_snapshots(grammars, overlap, first):
    assert [seed for seed in range(first, first + 50) if not check_mix(grammars, seed, overlap)] == []


SPELT = [b"", b"a", b"b", b"c", b" ", b"ab", b"bc", b" a", b"ca", b"abc", b" b", b"B"]
BANS = [("abc", "ca b"), ("aab", "bca", "c c c"), ("ab ab", "bb", "cca")]


def write_letters(ids: list[int]) -> int:
    return 1 + hash(tuple(ids)) % 4


def run_banned(runner: type, seed: int, overlap: str, stories: list[list[int]]) -> list[list[int]]:
    """What three sequences say whose banned strings take several tokens back. stories: guessed by a drafter; none:
    there is no drafter."""
    rng = random.Random(seed)
    accuracy = rng.choice([0.2, 0.5, 0.8])
    harness = Harness(
        runner(VOCAB, write_letters),
        max_num_seqs=3,
        max_num_batched_tokens=rng.choice([5, 6, 8, 64]),
        max_drafts=rng.choice([3, 4, 5]),
        rule="exact",
        overlap=overlap,
        drafter=(lambda _: Fickle(stories, accuracy)) if stories else None,
    )
    harness.engine.token_bytes = TokenBytes([*SPELT, *[b"."] * (VOCAB - len(SPELT))])
    for place in range(3):
        bans = {"banned_strings": rng.choice(BANS), "max_tokens": 50, "ignore_eos": True}
        harness.submit(f"{place}", [20 + place, 21], **bans)
    told = harness.run()
    assert harness.engine.counters.rewinds > 0
    return [told[f"{place}", 0, 0].tokens for place in range(3)]


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("first", [0, pytest.param(100, marks=pytest.mark.long)])
def test_rejected_drafts_and_banned_text_leave_no_wrong_state(overlap, first):
    """Rejected drafts have written over states to which a sequence then would go back."""
    for seed in range(first, first + (25 if first == 0 else 200)):
        plain = run_banned(ScriptedRunner, seed, "off", [])
        stories = [[20 + place, 21, *said] for place, said in enumerate(plain)]
        assert run_banned(StatefulScript, seed, overlap, stories) == plain, seed


# ---- the policy


def test_a_second_turn_starts_near_the_end_of_the_first():
    harness, prompt, count = make_harness(num_blocks=100), prompt_of(1, 150), 140
    harness.submit("first", prompt, max_tokens=count, ignore_eos=True)
    said = harness.run()["first", 0, 0].tokens
    harness.submit("second", [*prompt, *said, 5, 6, 7], max_tokens=9, ignore_eos=True)
    second = harness.run()["second", 0, 0]
    assert second.tokens == alone([*prompt, *said, 5, 6, 7], 9)
    assert len(prompt) + count - EVERY_OUTPUT - BLOCK <= second.cached < len(prompt) + count
    harness.submit("other", [*prompt, 9, 9], max_tokens=9, ignore_eos=True)
    other = harness.run()["other", 0, 0]
    assert other.tokens == alone([*prompt, 9, 9], 9)
    assert other.cached == (len(prompt) - TAIL) // BLOCK * BLOCK


def test_a_long_prompt_has_snapshots_on_the_way(monkeypatch):
    monkeypatch.setattr(state_snapshots, "EVERY_PROMPT", 64)
    harness, prompt = make_harness(num_blocks=100, max_num_batched_tokens=500), prompt_of(2, 300)
    harness.submit("a", prompt, max_tokens=1)
    harness.run()
    harness.submit("b", [*prompt[:210], *reversed(prompt[:60])], max_tokens=1)
    assert harness.run()["b", 0, 0].cached == 192


def test_short_prompts_cost_no_further_step():
    harness = make_harness(max_num_batched_tokens=200)
    for length in (LEAST + TAIL - 1, LEAST + TAIL):
        before = harness.engine.stats().steps
        harness.submit(f"{length}", prompt_of(3, length), max_tokens=1)
        harness.run()
        assert harness.engine.stats().steps - before == (1 if length < LEAST + TAIL else 2)


def test_salts_share_nothing():
    harness, prompt = make_harness(num_blocks=100), prompt_of(1, 150)
    for salt in (b"", b"a", b"b", b"a"):
        harness.submit(f"{salt}{len(harness.stories)}", prompt, max_tokens=2, user=Owner(cache_salt=salt))
        harness.run()
    assert [story.cached > 0 for story in harness.stories.values()] == [False, False, False, True]


def test_without_prefix_reuse_there_are_none():
    harness = make_harness(prefix_reuse=False)
    for name in "ab":
        harness.submit(name, prompt_of(1, 150), max_tokens=2)
        harness.run()
    assert [story.cached for story in harness.stories.values()] == [0, 0]
    assert not harness.engine.cache.snapshots.enabled


@pytest.mark.parametrize(
    ("config", "state_bytes", "expected"),
    [
        (CacheConfig(memory_gib=1), 1 << 20, 16),
        (CacheConfig(memory_gib=1), 1 << 24, 8),
        (CacheConfig(memory_gib=1), 1 << 30, 0),
        (CacheConfig(memory_gib=1, state_snapshots=100), 1 << 24, 100),
        (CacheConfig(memory_gib=1, prefix_reuse=False), 1 << 20, 0),
        (CacheConfig(memory_gib=1), 0, 0),
    ],
)
def test_they_take_a_part_of_the_memory(config, state_bytes, expected):
    assert num_snapshots(config, state_bytes, slots=8) == expected
    assert num_snapshots(config, state_bytes, 8, rings=1 << 40) == config.state_snapshots


def test_states_are_counted_with_any_number_of_blocks():
    states = plan_states(StatefulScript(VOCAB, script), 8, 0, CacheConfig(num_blocks=10, state_snapshots=10**9))
    with pytest.raises(ConfigError, match=r"^cache\.state_snapshots and scheduler\.max_num_seqs: "):
        num_blocks(CacheConfig(num_blocks=10, state_snapshots=10**9, memory_gib=1), 8, 100, None, states.num_bytes)


def make_sequence(*hashes: bytes, start: int = 0) -> Any:
    """A sequence of full blocks in slot 1, all of them output, whose ring has the state at their end."""
    end = len(hashes) * BLOCK
    facts = {"num_prompt": 1, "hashes": [*hashes], "state_start": start, "slot": 1}
    return SimpleNamespace(**facts, num_computed=end, num_published=0, output_snapshot=None, blocks=[])


@pytest.mark.usefixtures("many")
def test_the_least_recently_used_gives_way_but_not_to_a_plan():
    snapshots = StateSnapshots(BLOCK, slots=2, rows=2, places=2)
    for name in (b"a", b"b"):
        snapshots.save(make_sequence(name), 1)
    assert snapshots.take_copies() == [(2, 4), (2, 5)]
    assert [snapshots.count_usable([name], 1) for name in (b"a", b"b", b"c")] == [1, 1, 0]
    snapshots.save(make_sequence(b"c"), 1)  # the next step may start from both
    assert snapshots.take_copies() == []
    snapshots.load(make_sequence(b"a"))
    snapshots.save(make_sequence(b"c"), 1)
    assert snapshots.take_copies() == [(4, 2), (2, 5)]
    assert [snapshots.count_usable([name], 1) for name in (b"a", b"b", b"c")] == [1, 0, 1]
    snapshots.forget_all()
    assert [snapshots.count_usable([name], 1) for name in (b"a", b"b", b"c")] == [0, 0, 0]


@pytest.mark.usefixtures("many")
def test_of_an_output_only_the_last_one_stays():
    snapshots, sequence = StateSnapshots(BLOCK, slots=2, rows=2, places=9), make_sequence(b"a")
    snapshots.save(sequence, 1)
    sequence.hashes = [b"a", b"b"]
    snapshots.save(sequence, 2)
    assert [snapshots.count_usable(sequence.hashes, blocks) for blocks in (1, 2)] == [0, 2]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("met_by", ["load", "save", "plan"])
def test_of_an_output_those_stay_that_others_have_met(met_by):
    snapshots, sequence = StateSnapshots(BLOCK, slots=2, rows=2, places=9), make_sequence(b"a")
    snapshots.save(sequence, 1)
    if met_by == "load":
        snapshots.load(make_sequence(b"a"))
    elif met_by == "save":
        snapshots.save(make_sequence(b"a"), 1)
    else:
        snapshots.count_usable([b"a"], 1)
    sequence.hashes = [b"a", b"b"]
    snapshots.save(sequence, 2)
    assert [snapshots.count_usable(sequence.hashes, blocks) for blocks in (1, 2)] == [1, 2]


def test_copies_on_the_way_of_a_prompt_give_way_first(monkeypatch):
    """Six users take turns; each finds the beginning of its own conversation."""
    monkeypatch.setattr(state_snapshots, "EVERY_PROMPT", 32)
    harness = make_harness(num_blocks=300, max_num_seqs=8, state_snapshots=12)
    prompts = [[*range(place, place + 90), *range(60)] for place in range(6)]
    for turn in range(2):
        for place, prompt in enumerate(prompts):
            harness.submit(f"{turn} {place}", prompt + [5] * turn, max_tokens=2, ignore_eos=True)
            harness.run()
    assert [harness.stories[f"1 {place}", 0, 0].cached for place in range(6)] == [128] * 6


@pytest.mark.parametrize(("start", "length", "left"), [(32, 31, 0), (32, 32, 32), (0, 31, 31), (0, 28, 28), (0, 27, 0)])
def test_a_ring_that_was_loaded_has_no_earlier_states(start, length, left):
    """A sequence that goes back beyond the states that it has starts anew."""
    cache, sequence = BlockCache(4, BLOCK, state_rows=5), make_sequence(b"a", b"b", start=start)
    cache.note_pass(sequence, 32)
    cache.truncate_sequence(sequence, length)
    assert sequence.num_computed == left


@pytest.mark.parametrize(("written", "left"), [(36, 32), (37, 0)])
def test_a_pass_that_does_not_count_takes_states_away(written, left):
    """The pass was launched beyond tokens that were then taken back."""
    cache, sequence = BlockCache(4, BLOCK, state_rows=5), make_sequence(b"a", b"b")
    cache.note_pass(sequence, written)
    cache.note_pass(sequence, 33)  # a shorter one brings nothing back
    cache.truncate_sequence(sequence, 32)
    assert sequence.num_computed == left


# ---- faults


def skip_loads(snapshots: StateSnapshots, sequence: Sequence) -> None:
    pass


def say_yes(*_: Any) -> bool:
    return True


def cut_nothing(snapshots: StateSnapshots, sequence: Sequence, computed: int, tokens: int) -> int:
    return tokens


def copy_backwards(device: Device, copies: list[tuple[int, int]]) -> None:
    device.runner.copy_states(copies[::-1])  # pyright: ignore


FAULTS: dict[str, list[tuple[type, str, Callable[..., Any]]]] = {
    "snapshots are not loaded": [(StateSnapshots, "load", skip_loads)],
    "states that the ring has no more are saved": [
        (StateSnapshots, "_has_state", say_yes),
        (StateSnapshots, "limit_chunk", cut_nothing),  # or passes end where states are wanted
    ],
    "copies are made in another order": [(Device, "copy_states", copy_backwards)],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("many")
def test_faults_are_seen(monkeypatch, fault):
    for change in FAULTS[fault]:
        monkeypatch.setattr(*change)
    with pytest.raises((AssertionError, KeyError)):
        run_crowds("off")
