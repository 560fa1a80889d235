"""Which sequences of a step guess ahead, how far, and what becomes of it. The guesses themselves are the drafter's; verification is
the sampler's.

Guesses take only what a step has to spare: nobody is preempted, and nobody's prefill waits, for them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tailrace.config import SpeculationConfig
from tailrace.drafting.adaptive import Pace
from tailrace.drafting.base import Ask, Draft, Drafter, Seen
from tailrace.engine.batch import Sight
from tailrace.engine.draws import Guess, Guesses
from tailrace.engine.request import Sequence, State
from tailrace.options import Rule
from tailrace.runners.base import LayeredRunner, ModelRunner

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine

log = logging.getLogger(__name__)

DRAWN = ("draft_model", "early_exit", "eagle", "block")  # drafters that can draw from distributions


class Speculator:
    """Between the engine's step and a drafter.

    Args:
        drafter: None: only what grammars or forced tokens leave no choice about is guessed.
    """

    def __init__(self, drafter: Drafter | None, config: SpeculationConfig) -> None:
        self.drafter, self.config = drafter, config
        self.pace = Pace(config.max_drafts, config.adaptive)
        self.default: Rule = "rejection" if config.drafter in DRAWN else "exact"
        if config.rule != "auto":
            self.default = config.rule

    def guess(self, engine: Engine, work: list[tuple[Sequence, int]], spare: int) -> Guesses:
        """What the sequences of a step that decode may say next; the blocks that it takes are theirs afterwards.

        Args:
            spare: tokens that the step can still compute.
        """
        guesses: Guesses = {}
        asking: list[tuple[Sequence, int]] = []
        for sequence, tokens in work:
            if (
                tokens != 1
                or not sequence.leads
                or sequence.prefilling
                or sequence.num_output == 0
                or sequence.room < 2
            ):
                continue
            certain = self._certain(engine, sequence)[: min(sequence.room - 1, spare // len(sequence.members))]
            if certain and (count := reserve(engine, sequence, len(certain))):
                guesses[sequence.slot] = Guess(certain[:count], lawful=count, certain=True)
                spare -= count * len(sequence.members)
            elif not certain and self.drafter is not None and (limit := self._limit(sequence)):
                asking.append((sequence, limit))
        if self.drafter is None or not asking:
            return guesses
        others = sum(tokens for _, tokens in work) - len(asking)
        counts = self.pace.counts([(sequence.slot, limit) for sequence, limit in asking], others)
        asks: list[tuple[Sequence, Ask]] = []
        for (sequence, _), count in zip(asking, counts, strict=True):
            count = reserve(engine, sequence, min(count, spare // len(sequence.members)))
            if count:
                spare -= count * len(sequence.members)
                asks.append(
                    (
                        sequence,
                        Ask(
                            sequence.slot,
                            sequence.tokens,
                            count,
                            self._rule(sequence),
                            sequence.blocks,
                            sequence.computed,
                        ),
                    )
                )
        start = time.perf_counter()
        drafts = self._draft(self.drafter, [ask for _, ask in asks])
        self.pace.guessed(sum(len(draft.tokens) for draft in drafts), time.perf_counter() - start)
        for (sequence, ask), draft in zip(asks, drafts, strict=True):
            guess = lawful(sequence, draft, ask.rule)
            if guess.tokens:
                guesses[sequence.slot] = guess
            else:
                self.pace.drafted(sequence.slot, 0, 0)
        return guesses

    def stepped(self, tokens: int, seconds: float) -> None:
        """A step without prefills took so long from the forward pass to the draws."""
        if self.drafter is not None:
            self.pace.stepped(tokens, seconds)

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

    def observe(self, seen: list[Sight], runner: ModelRunner) -> None:
        """Show the drafter the target's hidden states, if it wants them."""
        if self.drafter is None or not self.drafter.captures or not isinstance(runner, LayeredRunner):
            return
        there: list[tuple[Sequence, int, int, int]] = []
        for sequence, computed, first, row in seen:
            end = (computed if sequence.state is State.FORKING else sequence).computed
            if sequence.leads and sequence.slot >= 0 and end > first:
                there.append((sequence, first, end - first, row))
        if not there:
            return
        sequences, first, count, row = zip(*there, strict=True)
        slots, tokens = [s.slot for s in sequences], [s.tokens for s in sequences]
        try:
            self.drafter.observe(Seen(slots, tokens, first, count, row, runner.hidden))
        except Exception:
            self._give_up()

    def leave(self, slot: int) -> None:
        """The slot is empty."""
        self.pace.leave(slot)
        if self.drafter is not None:
            self.drafter.leave(slot)

    def _certain(self, engine: Engine, sequence: Sequence) -> list[int]:
        """What must come next, or can hardly be otherwise: it is computed ahead like any guess, so that it takes no steps of its own."""
        forced = engine.slots[sequence.slot].carried.forced
        tokens: list[int] = []
        while (token := forced.get(sequence.num_output + len(tokens))) is not None:
            tokens.append(token)
        if not tokens and sequence.constraint is not None:
            tokens = sequence.constraint.forced()
            return tokens[: sequence.constraint.allows(tokens)]
        return tokens

    def _limit(self, sequence: Sequence) -> int:
        """The most guesses that a sequence may ask for."""
        asked = sequence.request.params.speculation
        limit = self.config.max_drafts if asked is None or asked.max_drafts is None else asked.max_drafts
        return min(limit, self.config.max_drafts, sequence.room - 1)

    def _rule(self, sequence: Sequence) -> Rule:
        asked = sequence.request.params.speculation
        return self.default if asked is None or asked.rule is None else asked.rule

    def _draft(self, drafter: Drafter, asks: list[Ask]) -> list[Draft]:
        """Its guesses; none if it fails, ever after: a drafter can only make things faster."""
        if not asks:
            return []
        try:
            return drafter.draft(asks)
        except Exception:
            self._give_up()
            return [Draft([])] * len(asks)

    def _give_up(self) -> None:
        log.exception("the drafter failed; from here on nothing is guessed")
        self.drafter = None


def reserve(engine: Engine, sequence: Sequence, count: int) -> int:
    """Blocks for so many guesses, or as many as the free ones hold; returns how many that are. The step's own tokens have theirs."""
    cache, members = engine.cache, sequence.members
    while count and sum(cache.demand(m, m.computed + 1 + count) for m in members) > cache.num_free:
        count -= 1
    for member in members if count else ():
        copies = cache.reserve(member, member.computed + 1 + count)
        assert not copies, "the step's own reservation has made the copies"
        engine.tables.write(member)
    return count


def lawful(sequence: Sequence, draft: Draft, rule: Rule) -> Guess:
    """The draft as a guess, cut where the grammar does not allow it. Of drafts drawn from distributions the first that is not allowed
    stays: that it was drawn must count, or what is drawn in its place would come too often."""
    count = len(draft.tokens) if sequence.constraint is None else sequence.constraint.allows(draft.tokens)
    keep = len(draft.tokens[: count + (draft.q is not None)])
    return Guess(draft.tokens[:keep], None if draft.q is None or not keep else draft.q[:keep], rule, count)
