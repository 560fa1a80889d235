"""Drafters, rules, guidance, grammars and what requests ask for, in combination: each is compared with the plain path,
which computes and draws one token a step. Where the rule is exact, or the request greedy, all that the client is told
is the same; the other lossless rules have the law that enumeration gives, over several steps; typical obeys what was
asked."""

from __future__ import annotations

import itertools
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from operator import mul
from types import SimpleNamespace

import pytest
import torch

from engine import laws
from engine.combinations import (
    ASKED,
    BLOCK,
    DRAFTERS,
    EOS,
    PROMPTS,
    RULES,
    TOKEN_BYTES,
    VOCAB,
    WORLDS,
    Case,
    Oracle,
    check,
    run,
    target,
    world_of,
)
from engine.harness import Harness
from tailrace.config import GrammarConfig
from tailrace.drafting import draft_sampler
from tailrace.drafting.adaptive import DraftLengthController
from tailrace.drafting.base import Draft
from tailrace.drafting.draft_budget import select_drafts
from tailrace.drafting.draft_history import Offer
from tailrace.engine import draws, speculation, step
from tailrace.engine.appending import TokenAppender, TokenOutcome
from tailrace.engine.checks.structured_output import StructuredOutput
from tailrace.engine.lifecycle import Lifecycle
from tailrace.engine.outputs import OutputProcessor
from tailrace.grammar import bitmasks
from tailrace.grammar.service import Grammars
from tailrace.kernels.rows import Rows
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling import Sampler, verify
from tailrace.sampling.backends import cpu, reference
from tailrace.sampling.slot import Slot
from tailrace.sampling.slots import Slots
from tailrace.wire.messages import Abort

FACTORS = {
    "drafter": [name for name in DRAFTERS if name != "none"],
    "rule": list(RULES),
    "guided": [False, True],
    "ruled": [False, True],
    "asked": list(ASKED),
    "greedy": [False, True],
    "world": list(WORLDS),
}


class Lab:
    """Runs cases, and remembers what the plain path has said."""

    def __init__(self) -> None:
        self.grammars = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
        self.known = {}

    def plain(self, case: Case):
        if case.plain not in self.known:
            self.known[case.plain] = found = run(case.plain, self.grammars, plainly=True)
            check(case.plain, found)
            assert found.harness.engine.counters.drafted_tokens == 0
        return self.known[case.plain]

    def compare(self, case: Case):
        """Run it, and hold it against the plain path."""
        expected = self.plain(case)
        found = run(case, self.grammars, expected.texts)
        check(case, found)
        if case.same:
            assert found.told == expected.told
        else:
            assert found.told["p1", 0, 0] == expected.told["p1", 0, 0]  # a greedy neighbour
        return found


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.grammars.close()


def covering(strength: int) -> list[Case]:
    """Cases in which every so many levels of different factors that can come together do: greedily, the best of some
    tried at a time."""
    rng = random.Random(strength)
    possible = [case for levels in itertools.product(*FACTORS.values()) if (case := Case(*levels)).possible]
    levels_of = {case: [(name, getattr(case, name)) for name in FACTORS] for case in possible}
    having: dict[tuple, set[Case]] = defaultdict(set)
    for case, levels in levels_of.items():
        for level in levels:
            having[level].add(case)
    missing = {group for levels in levels_of.values() for group in itertools.combinations(levels, strength)}
    order = sorted(missing, key=repr, reverse=True)
    chosen = []
    while missing:
        while order[-1] not in missing:
            order.pop()
        fits = set.intersection(*(having[level] for level in order[-1]))
        fitting = [case for case in possible if case in fits]
        tried = rng.sample(fitting, min(30, len(fitting)))
        groups = {case: set(itertools.combinations(levels_of[case], strength)) for case in tried}
        chosen.append(max(tried, key=lambda case: len(groups[case] & missing)))
        missing -= groups[chosen[-1]]
    return chosen


def name_of(case: Case) -> str:
    extras = [name for name in ("guided", "ruled", "greedy") if getattr(case, name)]
    return ", ".join([case.drafter, case.rule, *extras, case.asked, case.world])


# ---- token for token


@pytest.mark.few(8)
@pytest.mark.parametrize("case", covering(2), ids=name_of)
def test_any_two_together(lab, case):
    lab.compare(case)


@pytest.mark.few
@pytest.mark.parametrize("ruled", [False, True])
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_whoever_guesses_nothing_changes(lab, drafter, guided, ruled):
    asked = list(ASKED)[zlib.crc32(f"{drafter} {guided} {ruled}".encode()) % len(ASKED)]
    found = lab.compare(Case(drafter, "exact", guided, ruled, asked))
    slow = lab.plain(Case(drafter, "exact", guided, ruled, asked))
    counters = found.harness.engine.counters
    if drafter in ("draft model", "oracle", "dense"):
        assert counters.accepted_tokens
        assert found.harness.runner.steps < slow.harness.runner.steps
    assert counters.drafted_tokens or drafter == "none"


def test_what_is_certain_is_said_without_being_asked(lab):
    found = lab.compare(Case(ruled=True))
    assert found.harness.engine.counters.accepted_tokens


@pytest.mark.few(1)
@pytest.mark.parametrize("guided", [False, True])
def test_a_tight_cache_preempts_and_nothing_changes(lab, guided):
    for drafter, ruled in itertools.product(("suffix", "draft model", "oracle"), (False, True)):
        found = lab.compare(Case(drafter, "exact", guided, ruled, "n", world="tight"))
        assert found.harness.engine.counters.preemptions
        assert found.harness.engine.counters.accepted_tokens


@pytest.mark.long
@pytest.mark.parametrize("drafter", FACTORS["drafter"])
@pytest.mark.parametrize("rule", RULES)
def test_all_of_them_together(lab, rule, drafter):
    rest = [levels for name, levels in FACTORS.items() if name not in ("drafter", "rule")]
    cases = [Case(drafter, rule, *levels) for levels in itertools.product(*rest)]
    for case in cases:
        if case.possible:
            try:
                lab.compare(case)
            except AssertionError as error:
                raise AssertionError(name_of(case)) from error


# ---- aborts


@pytest.mark.few(1)
@pytest.mark.parametrize("world", ["roomy", "tight"])
@pytest.mark.parametrize("drafter", FACTORS["drafter"])
def test_aborts_at_every_step_leave_nothing_and_disturb_nobody(lab, drafter, world):
    case = Case(drafter, "exact", guided=True, ruled=True, asked="n", world=world)
    expected = lab.plain(case)
    for at in range(14):
        harness = world_of(case, lab.grammars, expected.texts)
        for place, prompt in enumerate(PROMPTS[:2]):
            harness.submit(f"r{place}", prompt, **case.params(place))
        for _ in range(at):
            harness.step()
        harness.engine.abort(Abort("r1", 0))
        found = harness.run()
        for (name, epoch, index), story in found.items():
            told = expected.stories[name, epoch, index].tokens
            assert story.tokens == told if name == "r0" else story.tokens == told[: len(story.tokens)]
        assert harness.aborted
        assert len(harness.engine.lifecycle.free_slots) == 8


# ---- steps are not wasted, and neither are blocks


@pytest.mark.parametrize("guided", [False, True])
def test_perfect_guesses_bring_all_that_they_can(lab, guided):
    """The first token comes with the prompt; then each step brings the drafts and one more."""
    case = Case(guided=guided, asked="min_tokens")
    expected = lab.plain(case)
    for drafts in (1, 2, 5):
        harness = Harness(
            ScriptedRunner(VOCAB, target, 512),
            token_bytes=TOKEN_BYTES,
            eos=EOS,
            drafter=lambda sampler: Oracle(expected.texts, accuracy=1.0),
            max_drafts=drafts,
        )
        harness.submit("r1", PROMPTS[1], **case.params(1))
        story = harness.run()["r1", 0, 0]
        assert story.tokens == expected.stories["r1", 0, 0].tokens
        assert harness.runner.steps == 1 + -(-(len(story.tokens) - 1) // (drafts + 1))


@pytest.mark.parametrize("drafter", FACTORS["drafter"])
def test_no_block_is_held_for_a_guess_that_did_not_come_or_stand(lab, drafter):
    found = lab.compare(Case(drafter, "exact"))
    assert found.harness.idle_blocks == 0


class Silent(Oracle):
    """Never has a guess."""

    def guess(self, ask):
        return Draft([])


def test_guesses_that_do_not_come_keep_nobody_waiting():
    """Guesses take only what a step has to spare: blocks that were reserved for some that did not come are free again
    for the next step."""
    waited = []
    for drafter in (None, lambda sampler: Silent([])):
        runner = ScriptedRunner(VOCAB, target, 512, block_size=BLOCK)
        harness = Harness(runner, block_size=BLOCK, num_blocks=11, max_drafts=8, drafter=drafter, eos=EOS)
        harness.submit("long", [1] * 3, max_tokens=40, ignore_eos=True)
        for _ in range(3):
            harness.step()
        harness.submit("next", [2] * 31, max_tokens=1)  # 8 blocks; the other needs two of the 11 so far
        before = harness.runner.steps
        while ("next", 0, 0) not in harness.stories:
            harness.step()
        waited.append(harness.runner.steps - before)
        harness.run()
    assert waited == [1, 1]


# ---- laws

QUICK = [
    ("late", "dense", "block", "nothing"),
    ("late", "dense", "rejection", "nothing"),
    ("late", "draft model", "block", "penalties"),
    ("random", "dense", "rejection", "all"),
    ("random", "dense", "block", "guidance"),
    pytest.param("random", "dense", "rejection", "grammar", marks=pytest.mark.long),
    ("random", "dense", "block", "min_tokens"),
    ("random", "draft model", "rejection", "penalties"),
    ("random", "one-hot", "rejection", "min_p, bias"),
    ("random", "draft model", "exact", "all"),
]


@pytest.fixture(scope="module")
def small_grammars() -> Iterator[Grammars]:
    made = Grammars(
        GrammarConfig(), None, laws.TOKEN_BYTES.token_bytes, laws.TOKEN_BYTES.special, [laws.EOS], laws.VOCAB
    )
    yield made
    made.close()


@pytest.mark.few(1)
@pytest.mark.parametrize(("world", "drafter", "rule", "asked"), QUICK)
def test_the_law_over_several_steps(small_grammars, world, drafter, rule, asked):
    assert laws.holds((world, drafter, rule, asked), small_grammars)


def select_by_scores(controller, offers: list[Offer]) -> list[int]:
    """Verify about half of the drafts, by the scores of all sequences."""
    survival = [list(accumulate(offer.scores, mul)) for offer in offers]
    step_s = [1.0 + 0.35 * n / len(offers) for n in range(sum(map(len, survival)) + 1)]
    return select_drafts(survival, len(offers), 1.0, step_s)


SELECTED = [("late", "block"), ("late", "rejection"), ("random", "block"), ("random", "rejection")]


@pytest.mark.few(2)
@pytest.mark.parametrize(("world", "rule"), SELECTED)
def test_the_law_of_selected_drafts(world, rule, monkeypatch):
    monkeypatch.setattr(DraftLengthController, "select", select_by_scores)
    assert laws.holds((world, "dense", rule, "nothing"), None, 2000)


def test_drafts_that_are_selected_by_what_was_drawn_are_seen(monkeypatch):
    """A token that the drafter thinks unlikely is dropped instead of rejected."""
    monkeypatch.setattr(DraftLengthController, "select", select_by_scores)
    monkeypatch.setattr(laws.Dense, "score", staticmethod(lambda q, token: float(q[token])))
    assert laws.p_of(("random", "dense", "rejection", "nothing"), None, 4000) < laws.ALPHA


@pytest.mark.long
@pytest.mark.parametrize("asked", laws.ASKED)
@pytest.mark.parametrize("rule", ["exact", "rejection", "block"])
@pytest.mark.parametrize("drafter", laws.DRAFTERS)
def test_the_law_of_all_of_them(small_grammars, drafter, rule, asked):
    for world in laws.WORLDS:
        assert laws.holds((world, drafter, rule, asked), small_grammars, 4000)


# ---- planted faults


def by_reference(patch) -> None:
    real = Sampler.begin

    def begin(self, logits, rows):
        self.backend = "reference"
        return real(self, logits, rows)

    patch.setattr(Sampler, "begin", begin)


def said_nothing(patch) -> None:
    """From here on tokens count, and are not remembered."""
    patch.setattr(Slot, "extend", lambda self, tokens: setattr(self, "num_output", self.num_output + len(tokens)))
    patch.setattr(Slot, "pop", lambda self: setattr(self, "num_output", self.num_output - 1))


def while_it_runs(patch, module, name: str, fault: Callable) -> None:
    """The fault is there while the function runs."""
    real = getattr(module, name)

    def wrapped(*args, **kwargs):
        with pytest.MonkeyPatch.context() as inner:
            fault(inner)
            return real(*args, **kwargs)

    patch.setattr(module, name, wrapped)


def stale_penalties(patch) -> None:
    by_reference(patch)
    while_it_runs(patch, reference, "verify_request", said_nothing)


def stale_programs(patch) -> None:
    while_it_runs(patch, cpu, "write_draft_programs", said_nothing)


def forgetful_unconditional(patch) -> None:
    real = TokenAppender.append_token

    def append(self, sequence, new, after_draft):
        outcome = real(self, sequence, new, after_draft)
        if after_draft and sequence.unconditional is not None and not outcome.over:
            sequence.unconditional.tokens[-1] = 0
        return outcome

    patch.setattr(TokenAppender, "append_token", append)


def grammar_stands_still(patch) -> None:
    real = TokenAppender.append_token

    def append(self, sequence, new, after_draft):
        with pytest.MonkeyPatch.context() as inner:
            if after_draft:
                inner.setattr(StructuredOutput, "push", lambda self, token: False)
            return real(self, sequence, new, after_draft)

    patch.setattr(TokenAppender, "append_token", append)


def grammar_stays_ahead(patch) -> None:
    def fill(job):
        for j, mask in enumerate(job.masks):
            job.matcher.fill(mask)
            if j < len(job.drafts):
                job.matcher.accept(job.drafts[j])

    patch.setattr(bitmasks, "fill_job", fill)


def no_bonus(patch) -> None:
    real = OutputProcessor.process_output
    patch.setattr(
        OutputProcessor,
        "process_output",
        lambda self, one: real(self, replace(one, tokens=one.tokens[: max(1, len(one.tokens) - 1)])),
    )


def shifted_noise(patch) -> None:
    real = Rows.drafted
    patch.setattr(
        Rows,
        "drafted",
        staticmethod(lambda slot, position, *rest, **more: real(slot, [at + 1 for at in position], *rest, **more)),
    )


def shifted_rows(patch) -> None:
    """Each draft's row is that of the token before it."""
    real = step.assemble_batch

    def assemble(work, drafts, *rest):
        assembled = real(work, drafts, *rest)
        wanted = assembled.batch.wanted
        wanted[1:] = torch.where(wanted[1:] == wanted[:-1] + 1, wanted[:-1].clone(), wanted[1:])
        return assembled

    patch.setattr(step, "assemble_batch", assemble)


def past_the_stop(patch) -> None:
    patch.setattr(TokenOutcome, "over", property(lambda self: self.invalidated))


def other_logprobs(patch) -> None:
    real = cpu.entries_of
    patch.setattr(cpu, "entries_of", lambda output, asked: [found and found[::-1] for found in real(output, asked)])


def blocks_kept(patch) -> None:
    patch.setattr(Lifecycle, "trim_blocks", lambda self, sequence: None)


def shared_by_forks(patch) -> None:
    """Forks draw with one key."""
    real = Slots.fork

    def fork(self, source, target, *, key, sequence_state=None):
        real(self, source, target, key=self[source].key, sequence_state=sequence_state)

    patch.setattr(Slots, "fork", fork)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("fault", "case"),
    [
        (stale_penalties, Case("oracle", asked="penalties")),
        (stale_programs, Case("oracle", asked="window")),
        (stale_programs, Case("oracle", asked="dry", greedy=True)),
        (forgetful_unconditional, Case("oracle", guided=True)),
        (grammar_stands_still, Case("oracle", ruled=True)),
        (grammar_stays_ahead, Case("oracle", ruled=True)),
        (no_bonus, Case("oracle")),
        (no_bonus, Case("dense", "rejection")),
        (shifted_noise, Case("oracle")),
        (shifted_rows, Case("oracle", greedy=True)),
        (past_the_stop, Case("oracle", asked="stop strings")),
        (past_the_stop, Case("oracle", asked="stop ids", greedy=True)),
        (past_the_stop, Case("dense", "typical", asked="stop ids")),
        (other_logprobs, Case("oracle", asked="logprobs")),
        (other_logprobs, Case("dense", "block", guided=True, asked="logprobs")),
        (blocks_kept, Case("draft model")),
        (shared_by_forks, Case("oracle", asked="n")),
    ],
    ids=lambda value: name_of(value) if isinstance(value, Case) else value.__name__,
)
def test_planted_faults_are_seen(lab, fault, case, monkeypatch):
    def compare() -> None:
        assert lab.compare(case).harness.idle_blocks == 0 or fault is not blocks_kept

    compare()
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        compare()


def other_proposals(patch) -> None:
    """Each draft comes with the distribution of the one before it."""
    real = draws.collect_proposals
    patch.setattr(
        draws,
        "collect_proposals",
        lambda guesses: (dense := real(guesses)) and [None if q is None else q.roll(1, 0) for q in dense],
    )


def drafts_that_know(patch) -> None:
    """Drafts are drawn with the noise that decides on them."""
    patch.setattr(draft_sampler, "DRAFT_STREAM", 1)


def pruned_quietly(patch) -> None:
    """A draft that the grammar forbids is as if it had never been drawn."""

    def cut_to_allowed(sequence, draft, rule):
        count = len(draft.tokens) if sequence.constraint is None else sequence.constraint.allows(draft.tokens)
        return draws.DraftTokens(draft.tokens[:count], draft.q[:count] if count else None, rule, count)

    patch.setattr(speculation, "cut_to_allowed", cut_to_allowed)


def noise_that_serves_twice(patch) -> None:
    """Block verification decides by the noise of the positions it looks at, also of those that it does not get to."""
    by_reference(patch)
    real = verify.kernels.uniform

    def uniform(key, position, stream):
        j = stream - verify.BLOCK_STREAM
        return real(key, position + j - 1, verify.ACCEPT_STREAM) if j >= 0 else real(key, position, stream)

    patch.setattr(verify, "kernels", SimpleNamespace(uniform=uniform))


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (other_proposals, ("random", "dense", "rejection", "nothing")),
        (other_proposals, ("random", "dense", "block", "nothing")),
        (drafts_that_know, ("random", "draft model", "rejection", "nothing")),
        (pruned_quietly, ("random", "dense", "rejection", "grammar")),
        (noise_that_serves_twice, ("late", "dense", "block", "nothing")),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, tuple) else value.__name__,
)
def test_planted_faults_of_laws_are_seen(small_grammars, fault, law, monkeypatch):
    fault(monkeypatch)
    assert not laws.holds(law, small_grammars)
