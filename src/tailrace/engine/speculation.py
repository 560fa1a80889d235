"""Which sequences of a step get drafts, how many, and what becomes of them. A drafter makes the drafts, the sampler
verifies them.

Drafts take only what a step has to spare: no sequence is preempted for them, and no prefill waits.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from tailrace.config import SpeculationConfig
from tailrace.drafting.adaptive import DraftLengthController, StepCost
from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates
from tailrace.engine.batch import HiddenRows
from tailrace.engine.draws import NO_DRAFTS, Drafts, DraftTokens
from tailrace.engine.isolation import tried
from tailrace.engine.kv_cache import BlockCache, BlockTables
from tailrace.engine.scheduler import Work
from tailrace.engine.sequence import Phase, Sequence
from tailrace.engine.stats import Counters
from tailrace.grammar.jump_forward import LOOK_S
from tailrace.options import MAX_DRAFTS, Rule
from tailrace.runners.base import LayeredRunner, ModelRunner

log = logging.getLogger(__name__)

DraftCounts = dict[Sequence, int]
MAX_FAILURES = 3  # in a row, after which a drafter is asked no more


class Speculator:
    """Between the engine's step and a drafter.

    Args:
        drafter: None: only forced tokens are drafted. cache, tables: drafts take blocks from them. host_s: processor
            time beside the model that one request may take in a step.
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
        self.lengths = DraftLengthController(config.max_drafts, config.adaptive)
        self.default: Rule = "rejection" if drafter is not None and drafter.draws else "exact"
        if config.rule != "auto":
            self.default = config.rule
        self.failures = 0
        # a sequence with a state can go back by so many drafts; see BlockCache
        self.most = cache.state_rows - 2 if cache.state_rows else MAX_DRAFTS
        self._cache, self._tables, self._counters, self._host_s = cache, tables, counters, host_s

    def draft_counts(self, work: Work) -> DraftCounts:
        """How many drafts each sequence of a step may ask the drafter for, without those that get none. Called at most
        once for a step. The last tokens of the sequences need not be known yet."""
        if self.drafter is None:
            return {}
        decoding = [sequence for sequence, tokens in work if may_draft(sequence, tokens)]
        return self._counts(decoding, sum(tokens for _, tokens in work))

    def _counts(self, asking: list[Sequence], planned: int) -> DraftCounts:
        """planned: tokens that the step computes anyway."""
        limits = [(sequence.slot, min(self._limit(sequence), self._affordable(sequence))) for sequence in asking]
        counts = self.lengths.counts(limits, planned - len(asking))
        return {sequence: count for sequence, count in zip(asking, counts, strict=True) if count}

    def draft(self, work: Work, spare: int, counts: DraftCounts | None = None) -> Drafts:
        """Drafts for the sequences of a step that decode. The blocks that the drafts need are reserved, the others are
        given back.

        Args:
            spare: tokens that the step can still compute. counts: from `draft_counts`, where that was called for this
                step already.
        """
        drafts: Drafts = {}
        asking: list[Sequence] = []
        until = time.thread_time() + LOOK_S
        # another sequence is the first to look for forced tokens in each step, while there is time for it
        turn = self._counters.steps % max(1, len(work))
        for sequence, tokens in work[turn:] + work[:turn]:
            if not may_draft(sequence, tokens):
                continue
            most = min(sequence.tokens_left - 1, self._affordable(sequence), spare)
            forced = self._forced(sequence, most, until)
            if forced is None:
                continue
            if not forced:
                asking.append(sequence)
            elif count := self._reserve(sequence, len(forced), spare):
                drafts[sequence.slot] = DraftTokens(forced[:count], num_allowed=count, forced=True)
                spare -= count * len(sequence.pair)
        if self.drafter is not None:
            planned = sum(tokens for _, tokens in work) + sum(len(draft.tokens) for draft in drafts.values())
            counts = self._counts(asking, planned) if counts is None else counts
            drafts |= self._drafted(self.drafter, {s: counts[s] for s in asking if s in counts}, spare)
        return drafts

    def _drafted(self, drafter: Drafter, counts: DraftCounts, spare: int) -> Drafts:
        """The drafter's drafts."""
        asked: list[tuple[Sequence, DraftRequest]] = []
        for sequence, count in counts.items():
            if count := self._reserve(sequence, min(count, sequence.tokens_left - 1), spare):
                spare -= count * len(sequence.pair)
                rule, blocks, computed = self.rule(sequence), sequence.blocks, sequence.num_computed
                request = DraftRequest(sequence.slot, sequence.tokens, count, rule, blocks, computed)
                asked.append((sequence, request))
        start = time.perf_counter()
        found = self._ask(drafter, [request for _, request in asked])
        self.lengths.record_drafting(sum(len(draft.tokens) for draft in found), time.perf_counter() - start)
        drafts: Drafts = {}
        for (sequence, request), draft in zip(asked, found, strict=True):
            allowed = tried(partial(cut_to_allowed, sequence, draft, request.rule), NO_DRAFTS)
            if len(allowed.tokens) < request.count:
                self.give_back(sequence, len(allowed.tokens))
            if allowed.tokens:
                drafts[sequence.slot] = allowed
            else:
                self.lengths.record_acceptance(sequence.slot, 0, 0)
        return drafts

    def expects_forced(self, sequences: list[Sequence]) -> bool:
        """For one of these sequences, which sample now, a forced token follows the sampled one, and drafting it
        pays."""
        until = time.thread_time() + LOOK_S
        return self.most > 0 and any(
            sequence.tokens_left > 2 and not sequence.waits_for_mask and len(self._forced(sequence, 2, until) or ()) > 1
            for sequence in sequences
        )

    def must_observe(self, work: Work) -> bool:
        """The drafter must see the target's hidden states of this step before the next one begins, since it may be
        asked for drafts."""
        if self.drafter is None or not self.drafter.captures:
            return False
        return any(self._limit(sequence) > 0 for sequence, _ in work if sequence.is_conditional)

    def record_step(self, tokens: int, seconds: float, record: StepCost) -> None:
        """A step without prefills took so long from the forward pass to the samples."""
        if self.drafter is not None:
            self.lengths.record_step(tokens, seconds, record)

    def record_acceptance(self, sequence: Sequence, draft: DraftTokens, accepted: int) -> None:
        """So many of the drafts were accepted."""
        counters = self._counters
        counters.drafted_tokens += len(draft.tokens)
        counters.accepted_tokens += accepted
        for place in range(accepted):
            counters.accepted_at[place] += 1
        for place in range(len(draft.tokens)):
            counters.drafted_at[place] += 1
        if not draft.forced and sequence.slot >= 0:
            self.lengths.record_acceptance(sequence.slot, len(draft.tokens), accepted)

    def observe(self, rows: list[HiddenRows], runner: ModelRunner) -> None:
        """Show the drafter the target's hidden states of a step, if it wants them."""
        if self.drafter is None or not self.drafter.captures:
            return
        with self._counters.timed("observe"):
            states = hidden_states(rows, runner) if isinstance(runner, LayeredRunner) else None
            if states is None:
                return
            try:
                self.drafter.observe(states)
            except Exception:
                self._failed(list(states.slots))

    def remove(self, slot: int) -> None:
        """The slot is empty."""
        self.lengths.remove(slot)
        if self.drafter is not None:
            self.drafter.remove(slot)

    def give_back(self, sequence: Sequence, count: int) -> None:
        """Give back the blocks beyond those for so many drafts."""
        for member in sequence.pair:
            self._cache.truncate(member, member.num_computed + 1 + count)
            self._tables.cut(member)

    def _reserve(self, sequence: Sequence, count: int, spare: int) -> int:
        """Blocks for so many drafts, or as many as the free ones hold and the step can compute. Returns how many drafts
        that are. The step's own tokens have their blocks already."""
        cache, pair = self._cache, sequence.pair
        count = min(count, spare // len(pair))
        while count and sum(cache.demand(m, m.num_computed + 1 + count) for m in pair) > cache.num_free:
            count -= 1
        for member in pair if count else ():
            copies = cache.reserve(member, member.num_computed + 1 + count)
            assert not copies, "the step's own reservation has made the copies"
            self._tables.write(member)
        return count

    def _affordable(self, sequence: Sequence) -> int:
        """The most drafts that the time for one request allows, where each row is known to take some."""
        min_host_s = sequence.request.min_host_s
        return min(self.most, max(0, int(self._host_s / min_host_s) - 1)) if min_host_s else self.most

    def _forced(self, sequence: Sequence, count: int, until: float) -> list[int] | None:
        """Forced tokens (jump-forward): what must come next, or can hardly be otherwise, at most `count` of it. They
        are verified like any drafts, so that they take no steps of their own. None: the grammar fails, which is
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
            return tried(lambda: tokens[: constraint.allows(tokens)], None)
        return tried(lambda: constraint.forced(count, left_s), None) if left_s > 0 else []

    def _limit(self, sequence: Sequence) -> int:
        """The most drafts that a sequence may ask for."""
        asked = sequence.request.params.speculation
        limit = self.config.max_drafts if asked is None or asked.max_drafts is None else asked.max_drafts
        limit = min(limit, self.config.max_drafts, sequence.tokens_left - 1)
        return limit if sequence.constraint is None else min(limit, sequence.constraint.affordable)

    def rule(self, sequence: Sequence) -> Rule:
        """The request's rule. If it names none: "exact" where it gives a seed, since the number of drafts depends on
        clocks, and with the other rules the tokens depend on that number; else the operator's rule."""
        params = sequence.request.params
        asked = None if params.speculation is None else params.speculation.rule
        rule: Rule = asked or (self.default if params.seed is None else "exact")
        # A sequence that backs up, or samples again, verifies twice at one position. Only exact verification may reuse
        # the noise there.
        again = sequence.bans is not None or (sequence.constraint is not None and sequence.constraint.closes)
        return "exact" if again and rule != "typical" else rule

    def _ask(self, drafter: Drafter, requests: list[DraftRequest]) -> list[Draft]:
        """The drafter's answer. No drafts if it fails: a drafter can only make things faster."""
        if not requests:
            return []
        try:
            drafts = drafter.draft(requests)
            self.failures = 0
            return drafts
        except Exception:
            self._failed([request.slot for request in requests])
            return [Draft([])] * len(requests)

    def _failed(self, slots: list[int]) -> None:
        """The drafter forgets the sequences that it failed with. After several failures in a row it is asked no
        more."""
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


def may_draft(sequence: Sequence, tokens: int) -> bool:
    """The sequence computes its last token alone, and two more may be sampled."""
    if tokens != 1 or not sequence.is_conditional or sequence.num_output == 0 or sequence.tokens_left < 2:
        return False
    return not sequence.prefilling


def cut_to_allowed(sequence: Sequence, draft: Draft, rule: Rule) -> DraftTokens:
    """The draft, cut where the grammar does not allow it. Of drafts drawn from distributions the first that is not
    allowed stays: its draw must count, or the tokens drawn in its place would come too often."""
    count = len(draft.tokens) if sequence.constraint is None else sequence.constraint.allows(draft.tokens)
    keep = len(draft.tokens[: count + (draft.q is not None)])
    return DraftTokens(draft.tokens[:keep], None if draft.q is None or not keep else draft.q[:keep], rule, count)


def hidden_states(rows: list[HiddenRows], runner: LayeredRunner) -> TargetStates | None:
    """The hidden states of tokens that count as computed; None where there are none."""
    there: list[tuple[Sequence, int, int, int]] = []
    for sequence, computed_by, first, row in rows:
        end = (computed_by if sequence.phase is Phase.FORK else sequence).num_computed
        if sequence.slot >= 0 and end > first:
            there.append((sequence, first, end - first, row))
    if not there:
        return None
    sequences, first, count, row = zip(*there, strict=True)
    return TargetStates([s.slot for s in sequences], [s.tokens for s in sequences], first, count, row, runner.hidden)
