"""Which sequences of a step guess ahead, how far, and what becomes of it. The guesses themselves are the drafter's; verification is
the sampler's.

Guesses take only what a step has to spare: nobody is preempted, and nobody's prefill waits, for them.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from tailrace.config import SpeculationConfig
from tailrace.drafting.adaptive import Pace, Stride
from tailrace.drafting.base import Ask, Draft, Drafter, Seen
from tailrace.engine.batch import Sight
from tailrace.engine.draws import NOTHING, Guess, Guesses
from tailrace.engine.isolation import tried
from tailrace.engine.scheduler import Work
from tailrace.engine.sequence import Sequence, State
from tailrace.grammar.jump_forward import LOOK_S
from tailrace.options import MAX_DRAFTS, Rule
from tailrace.runners.base import LayeredRunner, ModelRunner

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

log = logging.getLogger(__name__)

Counts = dict[Sequence, int]
FAILURES = 3  # in a row, after which a drafter is asked no more


class Speculator:
    """Between the engine's step and a drafter.

    Args:
        drafter: None: only what grammars or forced tokens leave no choice about is guessed.
    """

    def __init__(self, drafter: Drafter | None, config: SpeculationConfig) -> None:
        self.drafter, self.config = drafter, config
        self.pace = Pace(config.max_drafts, config.adaptive)
        self.default: Rule = "rejection" if drafter is not None and drafter.draws else "exact"
        if config.rule != "auto":
            self.default = config.rule
        self.failures = 0

    def counts(self, engine: Engine, work: Work) -> Counts:
        """How many guesses each sequence of a step may ask the drafter for, those that may for some; their last tokens need not be known.
        Once for each step."""
        if self.drafter is None:
            return {}
        decoding = [sequence for sequence, tokens in work if guesses_ahead(sequence, tokens)]
        return self._counts(engine, decoding, sum(tokens for _, tokens in work))

    def _counts(self, engine: Engine, asking: list[Sequence], planned: int) -> Counts:
        """planned: tokens that the step computes anyway."""
        limits = [(sequence.slot, min(self._limit(sequence), affordable(engine, sequence))) for sequence in asking]
        counts = self.pace.counts(limits, planned - len(asking))
        return {sequence: count for sequence, count in zip(asking, counts, strict=True) if count}

    def guess(self, engine: Engine, work: Work, spare: int, counts: Counts | None = None) -> Guesses:
        """What the sequences of a step that decode may say next. What it takes of the cache is theirs; what they do not need of it is not.

        Args:
            spare: tokens that the step can still compute. counts: of the step, where they were asked for already.
        """
        guesses: Guesses = {}
        asking: list[Sequence] = []
        until = time.thread_time() + LOOK_S
        turn = engine.counters.steps % max(
            1, len(work)
        )  # another one is the first to look ahead, while there is time to
        for sequence, tokens in work[turn:] + work[:turn]:
            if not guesses_ahead(sequence, tokens):
                continue
            certain = self._certain(
                engine, sequence, min(sequence.room - 1, affordable(engine, sequence), spare), until
            )
            if certain is None:
                continue
            if not certain:
                asking.append(sequence)
            elif count := reserve(engine, sequence, len(certain), spare):
                guesses[sequence.slot] = Guess(certain[:count], lawful=count, certain=True)
                spare -= count * len(sequence.members)
        if self.drafter is not None:
            planned = sum(tokens for _, tokens in work) + sum(len(guess.tokens) for guess in guesses.values())
            counts = self._counts(engine, asking, planned) if counts is None else counts
            guesses |= self._drafted(engine, self.drafter, {s: counts[s] for s in asking if s in counts}, spare)
        return guesses

    def _drafted(self, engine: Engine, drafter: Drafter, counts: Counts, spare: int) -> Guesses:
        """The drafter's guesses."""
        asks: list[tuple[Sequence, Ask]] = []
        for sequence, count in counts.items():
            if count := reserve(engine, sequence, min(count, sequence.room - 1), spare):
                spare -= count * len(sequence.members)
                rule = self._rule(sequence)
                asks.append(
                    (sequence, Ask(sequence.slot, sequence.tokens, count, rule, sequence.blocks, sequence.computed))
                )
        start = time.perf_counter()
        drafts = self._draft(drafter, [ask for _, ask in asks])
        self.pace.guessed(sum(len(draft.tokens) for draft in drafts), time.perf_counter() - start)
        guesses: Guesses = {}
        for (sequence, ask), draft in zip(asks, drafts, strict=True):
            guess = tried(partial(lawful, sequence, draft, ask.rule), NOTHING)
            if len(guess.tokens) < ask.count:
                give_back(engine, sequence, len(guess.tokens))
            if guess.tokens:
                guesses[sequence.slot] = guess
            else:
                self.pace.drafted(sequence.slot, 0, 0)
        return guesses

    def foresees(self, engine: Engine, sequences: list[Sequence]) -> bool:
        """Of one of those that draw now: what comes after the token that it draws is certain as well, and worth guessing."""
        until = time.thread_time() + LOOK_S
        return any(
            sequence.room > 2 and not sequence.waits and len(self._certain(engine, sequence, 2, until) or ()) > 1
            for sequence in sequences
        )

    def watches(self, work: Work) -> bool:
        """The drafter must see what the target computes in this step before the next one begins: it may be asked about who is in it."""
        if self.drafter is None or not self.drafter.captures:
            return False
        return any(self._limit(sequence) > 0 for sequence, _ in work if sequence.leads)

    def stepped(self, tokens: int, seconds: float, stride: Stride | None = None) -> None:
        """A step without prefills took so long from the forward pass to the draws. stride: of a step that is not the last one."""
        if self.drafter is not None:
            self.pace.stepped(tokens, seconds, stride)

    def learn(self, engine: Engine, sequence: Sequence, guess: Guess, accepted: int) -> None:
        """Of a guess so many tokens stood."""
        counters = engine.counters
        counters.drafted_tokens += len(guess.tokens)
        counters.accepted_tokens += accepted
        for place in range(accepted):
            counters.accepted_at[place] += 1
        for place in range(len(guess.tokens)):
            counters.drafted_at[place] += 1
        if not guess.certain and sequence.slot >= 0:
            self.pace.drafted(sequence.slot, len(guess.tokens), accepted)

    @property
    def observes(self) -> bool:
        """The drafter wants to see the target's hidden states."""
        return self.drafter is not None and bool(self.drafter.captures)

    def observe(self, seen: list[Sight], runner: ModelRunner) -> None:
        """Show the drafter the target's hidden states, if it wants them."""
        if self.drafter is None or not self.drafter.captures or not isinstance(runner, LayeredRunner):
            return
        there: list[tuple[Sequence, int, int, int]] = []
        for sequence, computed, first, row in seen:
            end = (computed if sequence.state is State.FORKING else sequence).computed
            if sequence.slot >= 0 and end > first:
                there.append((sequence, first, end - first, row))
        if not there:
            return
        sequences, first, count, row = zip(*there, strict=True)
        slots, tokens = [s.slot for s in sequences], [s.tokens for s in sequences]
        try:
            self.drafter.observe(Seen(slots, tokens, first, count, row, runner.hidden))
        except Exception:
            self._failed(slots)

    def remove(self, slot: int) -> None:
        """The slot is empty."""
        self.pace.remove(slot)
        if self.drafter is not None:
            self.drafter.remove(slot)

    def _certain(self, engine: Engine, sequence: Sequence, count: int, until: float) -> list[int] | None:
        """What must come next, or can hardly be otherwise, `count` tokens of it at most: it is computed ahead like any guess, so that it
        takes no steps of its own. None: its grammar fails, which it will be told when its masks are filled.

        Args:
            until: of time.thread_time, when it is no longer looked for.
        """
        forced = engine.slots[sequence.slot].sequence_state.forced
        tokens: list[int] = []
        while len(tokens) < count and (token := forced.get(sequence.num_output + len(tokens))) is not None:
            tokens.append(token)
        if sequence.constraint is None:
            return tokens
        constraint, left_s = sequence.constraint, until - time.thread_time()
        count = min(count, constraint.affordable)
        del tokens[count:]
        if tokens:
            return tried(lambda: tokens[: constraint.allows(tokens)], None)
        return tried(lambda: constraint.forced(count, left_s), None) if left_s > 0 else []

    def _limit(self, sequence: Sequence) -> int:
        """The most guesses that a sequence may ask for."""
        asked = sequence.request.params.speculation
        limit = self.config.max_drafts if asked is None or asked.max_drafts is None else asked.max_drafts
        limit = min(limit, self.config.max_drafts, sequence.room - 1)
        return limit if sequence.constraint is None else min(limit, sequence.constraint.affordable)

    def _rule(self, sequence: Sequence) -> Rule:
        """What the request asks for. Else exact for whoever gives a seed: how many guesses there are depends on clocks, and with the
        other rules the tokens depend on how many there are. Else what the operator asks for."""
        params = sequence.request.params
        asked = None if params.speculation is None else params.speculation.rule
        rule: Rule = asked or (self.default if params.seed is None else "exact")
        # one that backs up, or draws again, verifies twice at the same place, and only exact verification may use the same noise twice
        again = sequence.watch is not None or (sequence.constraint is not None and sequence.constraint.closes)
        return "exact" if again and rule != "typical" else rule

    def _draft(self, drafter: Drafter, asks: list[Ask]) -> list[Draft]:
        """Its guesses; none if it fails: a drafter can only make things faster."""
        if not asks:
            return []
        try:
            drafts = drafter.draft(asks)
            self.failures = 0
            return drafts
        except Exception:
            self._failed([ask.slot for ask in asks])
            return [Draft([])] * len(asks)

    def _failed(self, slots: list[int]) -> None:
        """The drafter forgets those that it failed with; after several failures in a row it is asked no more."""
        self.failures += 1
        log.exception("the drafter failed (%d of %d)", self.failures, FAILURES)
        try:
            for slot in slots:
                if self.drafter is not None:
                    self.drafter.remove(slot)
        except Exception:
            self.failures = FAILURES
        if self.failures >= FAILURES:
            log.error("from here on nothing is drafted")
            self.drafter = None


def guesses_ahead(sequence: Sequence, tokens: int) -> bool:
    """It computes its last token alone, and may say two more."""
    if tokens != 1 or not sequence.leads or sequence.num_output == 0 or sequence.room < 2:
        return False
    return not sequence.prefilling


def affordable(engine: Engine, sequence: Sequence) -> int:
    """The most guesses that the time for one request allows, where each row is known to take some."""
    least_s, host_s = sequence.request.least_s, engine.limits.scheduler.host_ms / 1e3
    return min(MAX_DRAFTS, max(0, int(host_s / least_s) - 1)) if least_s else MAX_DRAFTS


def reserve(engine: Engine, sequence: Sequence, count: int, spare: int) -> int:
    """Blocks for so many guesses, or as many as the free ones hold and the step can compute; returns how many that are. The step's own
    tokens have theirs."""
    cache, members = engine.cache, sequence.members
    count = min(count, spare // len(members))
    while count and sum(cache.demand(m, m.computed + 1 + count) for m in members) > cache.num_free:
        count -= 1
    for member in members if count else ():
        copies = cache.reserve(member, member.computed + 1 + count)
        assert not copies, "the step's own reservation has made the copies"
        engine.tables.write(member)
    return count


def give_back(engine: Engine, sequence: Sequence, count: int) -> None:
    """Blocks beyond those for so many guesses."""
    for member in sequence.members:
        engine.cache.truncate(member, member.computed + 1 + count)
        engine.tables.cut(member)


def lawful(sequence: Sequence, draft: Draft, rule: Rule) -> Guess:
    """The draft as a guess, cut where the grammar does not allow it. Of drafts drawn from distributions the first that is not allowed
    stays: that it was drawn must count, or what is drawn in its place would come too often."""
    count = len(draft.tokens) if sequence.constraint is None else sequence.constraint.allows(draft.tokens)
    keep = len(draft.tokens[: count + (draft.q is not None)])
    return Guess(draft.tokens[:keep], None if draft.q is None or not keep else draft.q[:keep], rule, count)
