"""Decides which sequences of a step get drafts and how many, and handles the result. A drafter makes the drafts, the
sampler verifies them.

Drafts use only the spare capacity of a step: no sequence is preempted for them, and no prefill waits.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

from tailrace.config import SpeculationConfig
from tailrace.drafting.adaptive import DraftLengthController
from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.drafting.draft_history import Offer, StepCost
from tailrace.engine.batch import HiddenRows, find_hidden_states
from tailrace.engine.draft_tokens import (
    NO_DRAFTS,
    Drafts,
    DraftTokens,
    cut_to_allowed,
    make_draft_request,
    may_draft,
)
from tailrace.engine.isolation import call_or_default
from tailrace.engine.kv_cache import BlockCache, BlockTables
from tailrace.engine.plan import Work
from tailrace.engine.predicted import count_ready, name_source, predict_output
from tailrace.engine.sequence import Sequence
from tailrace.engine.stats import Counters
from tailrace.grammar.jump_forward import LOOK_S
from tailrace.request.options import MAX_DRAFTS, Rule
from tailrace.runners.base import LayeredRunner, ModelRunner

log = logging.getLogger(__name__)

DraftCounts = dict[Sequence, int]
MAX_FAILURES = 3  # failures in a row after which a drafter is no longer used


class Speculator:
    """The link between the engine's step and a drafter.

    Args:
        drafter: None: only forced tokens, and predictions of requests, are drafted.
        cache, tables: drafts take blocks from them.
        host_s: processor time, without the model, that one request may take in a step.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        config: SpeculationConfig,
        cache: BlockCache,
        tables: BlockTables,
        counters: Counters,
        host_s: float,
    ) -> None:
        self.drafter, self.config = drafter, config
        self.lengths = DraftLengthController(MAX_DRAFTS, config.adaptive)
        self.default: Rule = "rejection" if drafter is not None and drafter.draws else "exact"
        if config.rule != "auto":
            self.default = config.rule
        self.failures = 0
        # A sequence with a state can go back by this many drafts; see BlockCache.
        self.most = cache.state_rows - 2 if cache.state_rows else MAX_DRAFTS
        self._cache, self._tables, self._counters, self._host_s = cache, tables, counters, host_s

    def draft_counts(self, work: Work) -> DraftCounts:
        """Return how many drafts each sequence of a step may ask the drafter for, without those that get no drafts.
        Called at most once for a step. The last tokens of the sequences need not be known yet."""
        decoding = [s for s, tokens in work if self._may_have_drafts(s) and may_draft(s, tokens)]
        return self._count_drafts(decoding, sum(tokens for _, tokens in work))

    def _count_drafts(self, asking: list[Sequence], planned: int) -> DraftCounts:
        """Return the counts for these sequences. planned: tokens that the step computes anyway."""
        if self.drafter is None and all(sequence.prediction is None for sequence in asking):
            self.lengths.skip_step()
            return {}
        counts = self.lengths.counts([self._limit_source(sequence) for sequence in asking], planned - len(asking))
        return {sequence: count for sequence, count in zip(asking, counts, strict=True) if count}

    def draft(self, work: Work, spare: int, counts: DraftCounts | None = None) -> Drafts:
        """Make drafts for the decoding sequences of a step. Reserve blocks for them, and release the unused ones.

        Args:
            spare: tokens that the step can still compute.
            counts: the result of `draft_counts`, if it was called for this step already.
        """
        drafts, asking = Drafts(), list[Sequence]()
        until = time.thread_time() + LOOK_S
        # In each step another sequence is the first to search for forced tokens, while time is left.
        turn = self._counters.steps % max(1, len(work))
        for sequence, tokens in work[turn:] + work[:turn]:
            if not (self._may_have_drafts(sequence) and may_draft(sequence, tokens)):
                continue
            most = min(sequence.tokens_left - 1, self._count_affordable(sequence), spare)
            forced = self._collect_forced(sequence, most, until)
            if forced is None:
                continue
            if not forced:
                asking.append(sequence)
            elif count := self._reserve_blocks(sequence, len(forced), spare):
                drafts[sequence.slot] = DraftTokens(forced[:count], num_allowed=count, forced=True)
                spare -= count * len(sequence.pair)
        if counts is None:
            planned = sum(tokens for _, tokens in work) + sum(len(draft.tokens) for draft in drafts.values())
            counts = self._count_drafts(asking, planned)
        return drafts | (self._collect_drafts({s: counts[s] for s in asking if s in counts}, spare) if counts else {})

    def _collect_drafts(self, counts: DraftCounts, spare: int) -> Drafts:
        """Return the drafts of these sequences: of the request's prediction if it has some, else of the drafter."""
        asked: list[tuple[Sequence, DraftRequest, bool]] = []
        for sequence, count in counts.items():
            predicted = bool(count_ready(sequence))
            most = self._limit_drafts(sequence) if predicted else self._limit_drafter(sequence)
            if count := self._reserve_blocks(sequence, min(count, most), spare):
                spare -= count * len(sequence.pair)
                request = make_draft_request(sequence, count, "exact" if predicted else self.rule(sequence))
                asked.append((sequence, request, predicted))
        start = time.perf_counter()
        found = iter(self._ask_drafter([request for _, request, predicted in asked if not predicted]))
        made: list[tuple[DraftTokens, Offer]] = []
        number = 0
        for sequence, request, predicted in asked:
            draft = predict_output(sequence, request.count) if predicted else next(found)
            number += len(draft.tokens)
            allowed = call_or_default(partial(cut_to_allowed, sequence, draft, request.rule), NO_DRAFTS)
            count = len(allowed.tokens)
            places = count if draft.q is None else request.count
            scores = () if draft.scores is None else draft.scores[:count]
            offer = Offer(name_source(sequence.slot, predicted), count, scores, draft.source, places)
            made.append((replace(allowed, predicted=predicted), offer))
        kept = self.lengths.select([offer for _, offer in made])
        self.lengths.record_drafting(number, time.perf_counter() - start)
        drafts = Drafts()
        for (sequence, request, _), (draft, offer), count in zip(asked, made, kept, strict=True):
            if count < request.count:
                self.give_back(sequence, count)
            if count:
                drafts[sequence.slot] = draft.cut(count)
            else:
                self.lengths.record_acceptance(offer.slot, 0, 0)
        return drafts

    def expects_forced(self, sequences: list[Sequence]) -> bool:
        """Return whether a forced token follows the token that one of these sequences samples now, so that drafting
        pays."""
        until = time.thread_time() + LOOK_S
        asking = [s for s in sequences if self._may_have_drafts(s) and s.tokens_left > 2 and not s.waits_for_mask]
        return self.most > 0 and any(len(self._collect_forced(s, 2, until) or ()) > 1 for s in asking)

    @property
    def observes(self) -> bool:
        """True if the drafter reads hidden states."""
        return self.drafter is not None and bool(self.drafter.captures)

    def must_observe(self, work: Work) -> bool:
        """Return whether the drafter, which may be asked for drafts, must see the hidden states of this step first."""
        return self.observes and any(self._limit_drafter(s) > 0 for s, _ in work if s.is_conditional)

    def record_step(self, tokens: int, seconds: float, record: StepCost) -> None:
        """Record the time of a step without prefills, from the forward pass to the samples."""
        self.lengths.record_step(tokens, seconds, record)

    def record_acceptance(self, sequence: Sequence, draft: DraftTokens, accepted: int) -> None:
        """Record how many of the drafts were accepted."""
        drafted = len(draft.tokens)
        self._counters.count_drafts(drafted, accepted, draft.forced)
        if not draft.forced and sequence.slot >= 0:
            self.lengths.record_acceptance(name_source(sequence.slot, draft.predicted), drafted, accepted)

    def observe(self, rows: list[HiddenRows], runner: ModelRunner) -> None:
        """Show the drafter the target's hidden states of a step, if it uses them."""
        if self.drafter is None or not self.observes:
            return
        with self._counters.time_part("observe"):
            states = find_hidden_states(rows, runner) if isinstance(runner, LayeredRunner) else None
            if states is None:
                return
            try:
                self.drafter.observe(states)
            except Exception:
                self._handle_failure(list(states.slots))

    def remove(self, slot: int) -> None:
        """Remove the slot's sequence."""
        self.lengths.remove(name_source(slot, predicted=False))
        self.lengths.remove(name_source(slot, predicted=True))
        if self.drafter is not None:
            self.drafter.remove(slot)

    def give_back(self, sequence: Sequence, count: int) -> None:
        """Release the blocks beyond those for `count` drafts."""
        for member in sequence.pair:
            self._cache.truncate_sequence(member, member.num_computed + 1 + count)
            self._tables.cut(member)

    def _reserve_blocks(self, sequence: Sequence, count: int, spare: int) -> int:
        """Reserve blocks for this many drafts, or as many as the free blocks hold and the step can compute. Return
        their number. The step's own tokens have their blocks already."""
        cache, pair = self._cache, sequence.pair
        count = min(count, spare // len(pair))
        while count and sum(cache.count_needed_blocks(m, m.num_computed + 1 + count) for m in pair) > cache.num_free:
            count -= 1
        for member in pair if count else ():
            copies = cache.reserve(member, member.num_computed + 1 + count)
            assert not copies, "the step's own reservation has made the copies"
            self._tables.write(member)
        return count

    def _count_affordable(self, sequence: Sequence) -> int:
        """Return the most drafts in one request's time limit, given that each row has a known cost."""
        min_host_s = sequence.request.min_host_s
        return min(self.most, max(0, int(self._host_s / min_host_s) - 1)) if min_host_s else self.most

    def _may_have_drafts(self, sequence: Sequence) -> bool:
        """Return whether anything can name a sequence's next tokens."""
        guessed = self.drafter is not None or sequence.prediction is not None
        return guessed or sequence.constraint is not None or bool(sequence.sequence_state.forced)

    def _collect_forced(self, sequence: Sequence, count: int, until: float) -> list[int] | None:
        """Return forced tokens (jump-forward): at most `count` tokens that certainly, or almost certainly, come next.

        They are verified like any drafts, so that they take no steps of their own. None: the grammar fails, which is
        reported when its masks are filled.

        Args:
            until: time.thread_time at which the search ends.
        """
        forced = sequence.sequence_state.forced
        tokens: list[int] = []
        while len(tokens) < count and (token := forced.get(sequence.num_output + len(tokens))) is not None:
            tokens.append(token)
        if sequence.constraint is None:
            return tokens
        constraint, left_s = sequence.constraint, until - time.thread_time()
        count = min(count, constraint.affordable)
        del tokens[count:]
        if tokens:
            return call_or_default(lambda: tokens[: constraint.count_allowed(tokens)], None)
        return call_or_default(lambda: constraint.forced(count, left_s), None) if left_s > 0 else []

    def _limit_source(self, sequence: Sequence) -> tuple[int, int]:
        """Return the name of the source that has drafts for the sequence, and their highest number."""
        if ready := count_ready(sequence):
            return name_source(sequence.slot, predicted=True), min(ready, self._limit_drafts(sequence))
        return name_source(sequence.slot, predicted=False), self._limit_drafter(sequence)

    def _limit_drafter(self, sequence: Sequence) -> int:
        """Return the most drafts that the drafter may be asked for."""
        return 0 if self.drafter is None else min(self.config.max_drafts, self._limit_drafts(sequence))

    def _limit_drafts(self, sequence: Sequence) -> int:
        """Return the most drafts that a sequence may have."""
        asked = sequence.request.params.speculation
        limit = MAX_DRAFTS if asked is None or asked.max_drafts is None else asked.max_drafts
        limit = min(limit, sequence.tokens_left - 1, self._count_affordable(sequence))
        return limit if sequence.constraint is None else min(limit, sequence.constraint.affordable)

    def rule(self, sequence: Sequence) -> Rule:
        """Return the rule that verifies the request's drafts. Without a rule of its own, a request with a seed gets
        "exact": the number of drafts depends on clocks, and with the other rules the tokens depend on that number.
        Other requests get the operator's rule."""
        params = sequence.request.params
        asked = None if params.speculation is None else params.speculation.rule
        rule: Rule = asked or (self.default if params.seed is None else "exact")
        # A sequence that backs up, or samples again, verifies twice at one position. Only exact verification may reuse
        # the noise there.
        again = sequence.bans is not None or (sequence.constraint is not None and sequence.constraint.closes)
        return "exact" if again and rule != "typical" else rule

    def _ask_drafter(self, requests: list[DraftRequest]) -> list[Draft]:
        """Return the drafter's drafts; none if it fails, since a drafter only makes things faster."""
        if self.drafter is None or not requests:
            return []
        try:
            drafts = self.drafter.draft(requests)
            self.failures = 0
            return drafts
        except Exception:
            self._handle_failure([request.slot for request in requests])
            return [Draft([])] * len(requests)

    def _handle_failure(self, slots: list[int]) -> None:
        """Remove the sequences that the drafter failed with. After several failures in a row the drafter is no longer
        used."""
        self.failures += 1
        log.exception("the drafter failed (%d of %d)", self.failures, MAX_FAILURES)
        try:
            for slot in slots:
                if self.drafter is not None:
                    self.drafter.remove(slot)
        except Exception:
            self.failures = MAX_FAILURES
        if self.failures >= MAX_FAILURES:
            log.error("from here on nothing is drafted")
            self.drafter = None
