"""Steps overlap with a drafter too: what is said is what steps say that follow each other, and only guesses are waited
for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch

from engine import laws
from engine.combinations import DRAFTERS, EOS, PROMPTS, TOKEN_BYTES, VOCAB, WORLDS, Case, Oracle, check, run, world_of
from engine.harness import VOCAB as WORDS
from engine.harness import Harness, alone, script
from engine.mixes import KINDS, Told, alike, crowd
from tailrace.config import GrammarConfig
from tailrace.drafting.base import Draft, Drafter
from tailrace.drafting.ngram import NGram
from tailrace.engine import draws
from tailrace.engine.device import Device
from tailrace.engine.engine import Engine
from tailrace.engine.in_flight import InFlightStep, LaunchedDraws, SampledTokens
from tailrace.engine.outputs import OutputProcessor
from tailrace.engine.stats import Counters
from tailrace.engine.step import StepDriver
from tailrace.grammar.service import Grammars
from tailrace.request.options import Speculation
from tailrace.runners.base import Batch
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling.sampler import Pending
from tailrace.wire.messages import Abort

NAMES = [name for name in DRAFTERS if name not in ("none", "dense")]
CROWDS = (0, 1, 2, 3, 4, 14, 18)  # in which each drafter meets what test_crowds_meet_everything counts
OFF = Speculation(max_drafts=0)


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
    yield made
    made.close()


def texts_of(told) -> list[list[int]]:
    return [[*prompt, *story.tokens] for story in told.values() for prompt in PROMPTS]


def plainly(grammars: Grammars, seed: int) -> dict[tuple[str, int, int], Told]:
    return crowd(seed, grammars, overlap="off")[0]


def both(grammars: Grammars, seed: int, name: str, plainly=plainly) -> tuple[bool, Counters]:
    """Whether the crowd is told the same with the drafter and overlap as with neither; what the former has met."""
    plain = plainly(grammars, seed)
    found, harness = crowd(seed, grammars, overlap="on", drafter=DRAFTERS[name](texts_of(plain)), rule="exact")
    return alike(plain, found), harness.engine.counters


known = functools.cache(functools.partial(both, plainly=functools.cache(plainly)))  # not where something is patched


# ---- token for token


@pytest.mark.few(6)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", CROWDS)
def test_a_crowd_is_told_the_same_whoever_drafts(grammars, seed, name):
    assert known(grammars, seed, name)[0]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", range(0, 600, 50))
def test_many_crowds_are_told_the_same_whoever_drafts(grammars, first, name):
    assert [seed for seed in range(first, first + 50) if not both(grammars, seed, name)[0]] == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_crowds_meet_everything(grammars, name):
    """Else the tests above say little."""
    found = [known(grammars, seed, name)[1] for seed in CROWDS]
    for counted, least in (("preemptions", 1), ("rewinds", 2), ("accepted_tokens", 20)):
        assert sum(getattr(counters, counted) for counters in found) >= least, counted
    assert sum(c.drafted_tokens - c.accepted_tokens for c in found) > 20


@pytest.mark.few(1)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_combinations_are_told_the_same(grammars, name, world, monkeypatch):
    """A request of each kind, guided or ruled or both, beside a greedy one."""
    monkeypatch.setattr(Harness, "overlap", "on")
    for at, asked in enumerate(("penalties", "stop strings", "n", "dry", "logprobs", "stop ids")):
        case = Case(name, "exact", guided=at % 2 == 0, ruled=at % 3 == 0, asked=asked, world=world)
        expected = run(case.plain, grammars, plainly=True)
        found = run(case, grammars, expected.texts)
        check(case, found)
        assert found.told == expected.told


@pytest.mark.few(2)
@pytest.mark.parametrize("drafter", ["oracle", "draft model"])
@pytest.mark.parametrize("kind", ["nothing", "n", "guided", "grammar", "banned", "thinking", "forced"])
def test_an_abort_between_any_two_steps(grammars, kind, drafter):
    texts: list[list[int]] = []
    expected: dict = {}
    for at in range(-1, 10):
        harness = world_of(Case(drafter), grammars, texts, overlap="on")
        for place in range(2):
            asked = {"max_tokens": 12, "temperature": 0.9, "seed": place} | KINDS[kind]
            harness.submit(f"r{place}", [place, 1, 8, 4, 5], **asked)
        for _ in range(at):
            harness.step()
        if at >= 0:
            harness.engine.abort(Abort("r1", 0))
        stories = {name: story.tokens for name, story in harness.run().items()}
        if at < 0:
            expected = stories
            texts += [[int(name[0][1]), 1, 8, 4, 5, *tokens] for name, tokens in stories.items()]
        assert len(harness.engine.lifecycle.free_slots) == 8
        assert harness.engine.steps.in_flight is None
        for name, tokens in stories.items():
            assert tokens == (expected[name] if name[0] == "r0" else expected[name][: len(tokens)])


# ---- the law of the other rules


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "drafter", "rule", "asked"),
    [
        ("late", "dense", "block", "nothing"),
        pytest.param("random", "dense", "rejection", "grammar", marks=pytest.mark.long),
        ("random", "draft model", "rejection", "penalties"),
        pytest.param("random", "one-hot", "rejection", "min_tokens", marks=pytest.mark.long),
        pytest.param("random", "draft model", "block", "all", marks=pytest.mark.long),
    ],
)
def test_the_law_over_several_steps(grammars, world, drafter, rule, asked, monkeypatch):
    monkeypatch.setattr(Harness, "overlap", "on")
    small = Grammars(
        GrammarConfig(), None, laws.TOKEN_BYTES.token_bytes, laws.TOKEN_BYTES.special, [laws.EOS], laws.VOCAB
    )
    assert laws.holds((world, drafter, rule, asked), small, more=" ahead")
    small.close()


@pytest.mark.long
def test_a_planted_fault_of_the_law_is_seen(monkeypatch):
    """Each draft comes with the distribution of the one before it."""
    monkeypatch.setattr(Harness, "overlap", "on")
    real = draws.collect_proposals
    monkeypatch.setattr(
        draws,
        "collect_proposals",
        lambda guesses: (dense := real(guesses)) and [None if q is None else q.roll(1, 0) for q in dense],
    )
    assert not laws.holds(("random", "dense", "rejection", "nothing"), None, more=" ahead")


# ---- who is waited for


class Noted(ScriptedRunner):
    """Remembers how many tokens of each batch were unknown to the host, and how many there were."""

    def __init__(self) -> None:
        super().__init__(WORDS, script, 512)
        self.unknown: list[int] = []
        self.sizes: list[int] = []

    def forward(self, batch: Batch) -> torch.Tensor:
        self.unknown.append(int((batch.token_ids < 0).sum()))
        self.sizes.append(len(batch.token_ids))
        return super().forward(batch)


class Knowing(Oracle):
    """Knows what the script says, and guesses all that it may."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked = 0

    def guess(self, ask) -> Draft:
        self.asked += 1
        return Draft(alone(list(ask.tokens), ask.count))


def unknown(drafter, **asked) -> list[int]:
    runner = Noted()
    harness = Harness(runner, overlap="on", drafter=drafter and (lambda sampler: drafter))
    for i in range(3):
        harness.submit(f"r{i}", [i, 1], max_tokens=10 + i, **asked)
    for (name, *_), story in harness.run().items():
        assert story.tokens == alone([int(name[1]), 1], 10 + int(name[1]))
    return runner.unknown


def test_who_does_not_guess_is_not_waited_for():
    """As without a drafter, to the step."""
    assert unknown(Knowing(), speculation=OFF) == unknown(None) == [0, *[3] * 9, 2, 1]
    assert unknown(Knowing()) == [0] * 3  # a token and five guesses at a time


def test_steps_overlap_where_pace_wants_no_guesses(monkeypatch):
    """It decides before the tokens are known, once for each step."""
    drafter, runner = Knowing(), Noted()
    harness = Harness(runner, overlap="on", drafter=lambda sampler: drafter)
    wanted = iter([0, 2, 0, 0, 0, 3, *[0] * 20])
    monkeypatch.setattr(harness.engine.speculator.lengths, "counts", lambda asks, others: [next(wanted)] * len(asks))
    harness.submit("a", [1, 2], max_tokens=16)
    assert harness.run()["a", 0, 0].tokens == alone([1, 2], 16)
    assert drafter.asked == 2
    # the prompt; 2 guesses; after them the number of tokens is known; 3 guesses; …
    assert runner.sizes[1] == 3
    assert runner.sizes.count(4) == 1
    at = runner.sizes.index(4)
    assert runner.unknown == [0, 0, 0, *[1] * (at - 3), 0, 0, *[1] * (len(runner.unknown) - at - 2)]


def test_what_was_drawn_is_committed_while_the_next_guesses_are_verified(monkeypatch):
    events: list[str] = []

    def noted(owner, name: str) -> None:
        real = getattr(owner, name)

        def wrapped(*args):
            said = name != "process_samples" or any(True for _ in args[1])
            events.extend([name] if said else [])
            return real(*args)

        monkeypatch.setattr(owner, name, wrapped)

    noted(Device, "launch")
    noted(Pending, "wait")
    noted(OutputProcessor, "process_samples")
    harness = Harness(overlap="on", drafter=lambda sampler: Knowing(), max_drafts=2)
    harness.submit("a", [1, 2], max_tokens=10)
    assert harness.run()["a", 0, 0].tokens == alone([1, 2], 10)
    # nobody waits for the last one, who ends: it is committed at once
    assert events == ["launch", *["wait", "launch", "process_samples"] * 3, "wait", "process_samples"]


def test_who_does_not_guess_loses_nothing_but_the_wait():
    """Beside one that guesses each step brings the other one token, and none is computed in vain."""
    runner = Noted()
    harness = Harness(runner, overlap="on", drafter=lambda sampler: Knowing(), max_drafts=3)
    harness.submit("guesses", [1, 2], max_tokens=21)
    harness.submit("doesn't", [2, 2], max_tokens=6, speculation=OFF)
    stories = harness.run()
    assert stories["guesses", 0, 0].tokens == alone([1, 2], 21)
    assert stories["doesn't", 0, 0].tokens == alone([2, 2], 6)
    assert runner.sizes == [4, *[5] * 5]


@pytest.mark.parametrize("length", range(2, 14))
def test_nobody_loses_a_step_at_its_end(length):
    """Plans are made when all guesses are taken to stand; whoever would end with them is planned all the same."""
    steps = {}
    for mode in ("off", "on"):
        harness = Harness(
            overlap=mode, drafter=lambda sampler: Oracle([[1, 2, *alone([1, 2], length)]], 0.5), max_drafts=3
        )
        harness.submit("a", [1, 2], max_tokens=length)
        assert harness.run()["a", 0, 0].tokens == alone([1, 2], length)
        steps[mode] = harness.engine.counters.steps
    assert steps["on"] == steps["off"]


def test_the_drafter_s_time_is_told_step_by_step(monkeypatch):
    """Of a step without guesses when the next one has been counted; of none twice, and of none with a prompt in it."""
    harness = Harness(overlap="on", drafter=lambda sampler: NGram(), adaptive=True)
    pace, told = harness.engine.speculator.lengths, []
    real = pace.record_step
    monkeypatch.setattr(
        pace,
        "record_step",
        lambda tokens, seconds, record: told.append((record, seconds)) or real(tokens, seconds, record),
    )
    for i in range(2):
        harness.submit(f"r{i}", [i, 1], max_tokens=30)
    harness.run()
    assert len(told) == len({id(record) for record, _ in told}) == harness.engine.counters.steps - 1
    assert all(seconds > 0 for _, seconds in told)


# ---- planted faults


def other_tokens_are_foretold(patch) -> None:
    """What is foretold is what was said, in another order."""
    real = LaunchedDraws._assume_tokens
    patch.setattr(LaunchedDraws, "_assume_tokens", lambda self, sequence, tokens: real(self, sequence, tokens[::-1]))


def guesses_are_not_computed(patch) -> None:
    """What stands counts as not computed."""

    def assume(self, sequence, tokens) -> None:
        for member in sequence.pair:
            member.tokens += tokens
        self.assumed.append((sequence, 1))

    patch.setattr(LaunchedDraws, "_assume_tokens", assume)


def void_rows_count(patch) -> None:
    patch.setattr(InFlightStep, "is_valid", lambda self, sequence: sequence.slot >= 0)


def blocks_under_way_are_given_back(patch) -> None:
    """What is being written is cut when the tokens before it are committed."""
    real = OutputProcessor.process_samples
    patch.setattr(
        OutputProcessor, "process_samples", lambda self, samples, in_flight: real(self, samples, lambda _: False)
    )


def grammars_hear_late(patch) -> None:
    patch.setattr(
        SampledTokens,
        "must_be_processed_first",
        lambda self, slots, drafter: self.status != 0 or self.sequence.tokens_left <= len(self.tokens),
    )


def guesses_are_not_waited_for(patch) -> None:
    patch.setattr(StepDriver, "must_wait", lambda self, launched: not launched.pending)


def assumptions_stay(patch) -> None:
    patch.setattr(LaunchedDraws, "undo_assumptions", lambda self: None)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "fault",
    [
        other_tokens_are_foretold,
        guesses_are_not_computed,
        pytest.param(void_rows_count, marks=pytest.mark.long),  # seen in few crowds only
        blocks_under_way_are_given_back,
        grammars_hear_late,
        guesses_are_not_waited_for,
        assumptions_stay,
    ],
    ids=lambda fault: fault.__name__,
)
def test_planted_faults_are_seen(grammars, fault: Callable, monkeypatch):
    fault(monkeypatch)

    def seen(seed: int, name: str) -> bool:
        try:
            return not both(grammars, seed, name)[0]
        except Exception:
            return True

    assert any(seen(seed, name) for seed in range(40) for name in ("oracle", "draft model"))


class Looking(Drafter):
    """Draws its guesses with the engine's sampler, as it were: it looks at where the slots stand."""

    draws = True

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.behind: dict[int, int] = {}

    def draft(self, asks):
        assert self.engine is not None
        for ask in asks:
            slot = self.engine.slots[ask.slot]
            self.behind[ask.slot] = len(ask.tokens) - (slot.num_prompt + slot.num_output)
        return [Draft([ask.tokens[-1]]) for ask in asks]

    def observe(self, seen):
        raise AssertionError("it captures nothing")

    def remove(self, slot):
        pass


def test_who_draws_guesses_with_what_has_been_said_has_heard_it():
    looking = Looking()
    harness = Harness(ScriptedRunner(WORDS, script, 512), overlap="on", drafter=lambda _: looking)
    looking.engine = harness.engine
    asked = ({}, {"presence_penalty": 0.5}, {"mirostat": 2, "temperature": 1.0}, {"bad_words": ((3, 4),)})
    for place, fields in enumerate(asked):
        harness.submit(f"r{place}", [5, 6, 7], max_tokens=12, ignore_eos=True, seed=place, **fields)
    found: set[tuple[int, int]] = set()
    while harness.engine.has_work:
        looking.behind.clear()
        harness.step()
        found |= set(looking.behind.items())
    assert {behind for slot, behind in found if slot != 0} == {0}
    assert {behind for slot, behind in found if slot == 0} != {0}  # its guesses don't depend on it
