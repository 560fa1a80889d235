"""Process a step's outputs: append sampled tokens one by one, check stop conditions, queue messages. Tokens sampled
after a stop are discarded.

`append_token` decides whether a sequence goes on, and returns the decision. `process_output` applies it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from tailrace.config import SchedulerConfig
from tailrace.engine.checks import NewToken
from tailrace.engine.checks.banned_strings import GRACE
from tailrace.engine.checks.structured_output import RESTS, StructuredOutput
from tailrace.engine.draws import SampleSkippedError
from tailrace.engine.in_flight import SampledTokens
from tailrace.engine.isolation import Isolated
from tailrace.engine.lifecycle import Ending, Lifecycle
from tailrace.engine.memory import MemoryLimit
from tailrace.engine.sequence import Phase, Sequence
from tailrace.errors import NothingLeftError, RowError, TailraceError
from tailrace.explanation import Explanation
from tailrace.grammar.bitmasks import in_time
from tailrace.kernels.status import EMPTY, MESSAGES, NAMES, OK
from tailrace.sampling import Sampler
from tailrace.wire.messages import Tokens

# Processor time in a step for one call's searches for the shortest completion. A search goes on in the next step.
SEARCH_S = 0.01


@dataclass(slots=True)
class HostTime:
    """Processor time in one step, by call: taken_s: of all its outputs. last_s: of its last one. searched_s: of
    searches for the shortest completion."""

    taken_s: defaultdict[tuple[bytes, str], float] = field(default_factory=lambda: defaultdict(float))
    last_s: dict[tuple[bytes, str], float] = field(default_factory=dict)
    searched_s: defaultdict[tuple[bytes, str], float] = field(default_factory=lambda: defaultdict(float))


@dataclass(slots=True)
class TokenOutcome:
    """What a token leads to. out: the tokens that can be sent now. invalidated: the tokens sampled after it do not
    count. ending: the sequence ends with it. ends: what it ends, as Explanation.ended has it."""

    out: list[NewToken] = field(default_factory=list)
    invalidated: bool = False
    ending: Ending | None = None
    ends: str | None = None

    @property
    def over(self) -> bool:
        """No further token of this step counts."""
        return self.invalidated or self.ending is not None


class OutputProcessor:
    """Samples → history and messages.

    Args:
        sampler: explains its draws. memory_limit: adds up the memory that outputs take. grammar_step_s: processor time
            of one token in a grammar; None: there are no grammars.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        limits: SchedulerConfig,
        sampler: Sampler,
        memory_limit: MemoryLimit,
        grammar_step_s: float | None,
    ) -> None:
        self.lifecycle, self.slots, self.counters = lifecycle, lifecycle.slots, lifecycle.counters
        self.limits, self.sampler, self.memory_limit = limits, sampler, memory_limit
        self._grammar_step_s = grammar_step_s
        self._spent = HostTime()

    def begin_step(self) -> None:
        """The outputs of another step come next."""
        self._spent = HostTime()

    def process(self, samples: Iterable[SampledTokens], in_flight: Callable[[Sequence], bool]) -> None:
        """All samples of a step, or a part of them. in_flight: whether a sequence is in a step whose forward pass has
        been launched."""
        for one in samples:
            sequence = one.sequence
            if sequence.phase is not Phase.RUNNING:
                continue
            if one.error is not None:  # first: without a mask the row may have no status at all
                self._without_mask(sequence, one.error)
            elif one.status != OK:
                self._without_token(sequence, one.status)
            elif self._spent.taken_s[sequence.request.shared_name] > self.limits.host_ms / 1e3:
                # the sequences of this call take turns from the next step on, and sample then what they sampled now
                sequence.host_s = max(sequence.host_s, self._spent.last_s[sequence.request.shared_name])
                self.lifecycle.trim_blocks(sequence)
            else:
                self._timed(one)
                beyond = bool(one.draft.tokens) or sequence.num_uncomputed == 0  # it may hold blocks beyond its tokens
                # in a step in flight those are being written
                if beyond and sequence.phase is Phase.RUNNING and not in_flight(sequence):
                    self.lifecycle.trim_blocks(sequence)

    def _timed(self, one: SampledTokens) -> None:
        """Process an output, and note what it costs the host."""
        sequence, request, spent = one.sequence, one.sequence.request, self._spent
        sampling_s, begun_s = self.slots[sequence.slot].took_s, time.thread_time()
        with self.memory_limit.of(request):
            self.process_output(one)
        spent.last_s[request.shared_name] = time.thread_time() - begun_s
        spent.taken_s[request.shared_name] += spent.last_s[request.shared_name]
        sequence.host_s = spent.last_s[request.shared_name] + sampling_s
        if sequence.constraint is not None:
            sequence.host_s += sequence.constraint.mask_s * one.draft.num_rows
        if one.kept is not None:
            sequence.host_s += one.kept.took_s
        sequence.host_s = max(sequence.host_s, request.min_host_s * one.draft.num_rows)
        request.estimate_costs(sequence.host_s)

    def _without_mask(self, sequence: Sequence, error: Exception) -> None:
        """The sample does not count."""
        if isinstance(error, SampleSkippedError):
            self.lifecycle.trim_blocks(sequence)
            return
        cause = error if isinstance(error, TailraceError) else RowError(f"grammar: {error}")
        self.lifecycle.end(sequence, Ending(error=cause))

    def _without_token(self, sequence: Sequence, status: int) -> None:
        """No token could be sampled. If the request's own fields exclude all tokens, that is not the model's fault."""
        if status == EMPTY and sequence.bans is not None:
            if out := sequence.bans.rest():
                self._send(sequence, out)
            self.lifecycle.end(sequence, Ending("abort", cause=sequence.bans.field))
            return
        at = f"at position {len(sequence.tokens)}"
        excluding = sequence.request.params.excluding
        if status == EMPTY and excluding:
            error = NothingLeftError(f"{', '.join(excluding)}: no token is left {at}", excluding[0])
        else:
            self.counters.bad_rows[NAMES[status]] += 1
            error = RowError(f"{MESSAGES[status]} {at}")
        self.lifecycle.end(sequence, Ending(error=error))

    def process_output(self, one: SampledTokens) -> None:
        """Append the tokens that verification kept: the first is new, each further one follows an accepted draft. Then
        send what can be sent, and end the sequence if a token says so."""
        sequence = one.sequence
        tokens = one.tokens if sequence.constraint is None else one.tokens[: sequence.constraint.known]
        records: list[Explanation] = []
        if one.kept is not None:
            with Isolated("the tokens could not be explained", sequence.request.id) as explaining:
                drafter = self.lifecycle.speculator.config.drafter
                records = one.kept.explain(self.sampler, sequence.request.params, one.draft, drafter)
            if explaining.error is not None:
                self.lifecycle.end(sequence, Ending(error=explaining.error))
                return
        out: list[NewToken] = []
        before, ending = len(sequence.tokens), None
        for place, token in enumerate(tokens):
            outcome = TokenOutcome()
            with Isolated("the token could not be processed", sequence.request.id) as attempt:
                reported = one.logprobs[place] if one.logprobs else None, records[place] if records else None
                new = NewToken(token, *reported)
                outcome = self.append_token(sequence, new, after_draft=place > 0)
            ending = outcome.ending if attempt.error is None else Ending(error=attempt.error)
            out += outcome.out if outcome.ends is None else ended(outcome.out, outcome.ends)
            if outcome.over or attempt.error is not None:
                break
        if one.draft.tokens and not one.draft.forced:  # the client is told of accepted drafts that became output
            appended = max(0, len(sequence.tokens) - before)
            sequence.draft_counts += (len(one.draft.tokens), min(one.accepted, appended))
        if out:
            self._send(sequence, out)
        if ending is not None:
            self.lifecycle.end(sequence, ending)

    def append_token(self, sequence: Sequence, new: NewToken, after_draft: bool) -> TokenOutcome:
        """One token becomes history. Says whether it ends the sequence, or invalidates what was sampled after it.

        EOS is looked at first, then the stop ids, then stop strings and patterns, then repetition, then the end of the
        grammar, then the length. Where several apply, the first gives the reason.

        Args:
            after_draft: the token before it was a draft, whose keys and values are in the cache.

        Raises:
            RowError: the grammar does not allow the token, which was forced.
        """
        assert sequence.phase is Phase.RUNNING
        request, params, constraint = sequence.request, sequence.request.params, sequence.constraint
        if constraint is not None and (instead := self._closing(sequence, constraint, new.id)) is not None:
            return instead
        self.slots.commit([sequence.slot], [[new.id]])
        sequence.append(new.id, after_draft)
        self.counters.generated_tokens += 1
        stops = request.ends_output(new.id) and sequence.num_output > params.min_tokens
        full = len(sequence.tokens) >= request.max_len
        outcome = TokenOutcome([new])
        if constraint is not None and not stops:
            outcome.invalidated = self._push_to_grammar(constraint, new.id)
        complete = constraint is not None and constraint.finished
        if sequence.bans is not None:
            silent = stops and not params.include_stop_str_in_output
            if not self._check_bans(sequence, outcome, silent, last=stops or full or complete):
                return outcome
        if stops:
            outcome.ending, outcome.ends = Ending("stop", new.id), "stop"
        elif check := next((c for c in sequence.stop_checks if any(c.push(sent.id) for sent in outcome.out)), None):
            outcome.ending, outcome.ends = Ending("stop", cause=check.stop_reason), check.stop_reason or "stop"
        elif complete:
            outcome.ending, outcome.ends = Ending("stop"), "grammar"
        elif full:
            outcome.ending, outcome.ends = Ending("length"), "length"
        elif sequence.thinking is not None and (forced := sequence.thinking.push(new.id)):
            self.slots.force(sequence.slot, forced)
            outcome.invalidated, outcome.ends = True, "thinking_token_budget"
        return outcome

    def _closing(self, sequence: Sequence, constraint: StructuredOutput, token: int) -> TokenOutcome | None:
        """Where the text of a grammar must be closed now, what happens instead of the token; None: the token may be
        appended."""
        begun_s, name = time.thread_time(), sequence.request.shared_name
        spent_s = self._spent.searched_s[name]
        until = RESTS if spent_s > SEARCH_S else begun_s + SEARCH_S - spent_s
        completion = constraint.forced_completion(token, sequence.tokens_left, until)
        self._spent.searched_s[name] += time.thread_time() - begun_s
        if constraint.searching:
            return TokenOutcome(invalidated=True)  # the same token is sampled again, until it is known what it leads to
        if completion is None:
            return None
        if not completion:  # the text is complete as it is
            held = [] if sequence.bans is None else sequence.bans.release(everything=True)
            return TokenOutcome(held, ending=Ending("stop"))
        self.slots.force(sequence.slot, completion)
        return TokenOutcome(invalidated=True)

    def _push_to_grammar(self, constraint: StructuredOutput, token: int) -> bool:
        """True if the grammar begins, or ends, with this token.

        Raises:
            RowError: the grammar does not allow the token, so the token was forced. GrammarLimitError: it takes too
                long, and would again.
        """
        begun_s = time.thread_time()
        try:
            invalidated = constraint.push(token)
        except ValueError as error:
            raise RowError(f"grammar: {error}") from error
        if self._grammar_step_s is not None:
            in_time(begun_s + self._grammar_step_s, self._grammar_step_s)
        return invalidated

    def _check_bans(self, sequence: Sequence, outcome: TokenOutcome, silent: bool, last: bool) -> bool:
        """Leave in `outcome.out` what can't become anything banned any more. False if something banned is complete: the
        sequence has been rewound, or ends because too many of its tokens were taken back.

        Args:
            silent: the token leaves no text. last: it ends the sequence.
        """
        bans = sequence.bans
        assert bans is not None
        [new] = outcome.out
        outcome.out = []
        if (position := bans.push(new.id, silent, last)) is None:
            bans.held.append(new)
            outcome.out = bans.release(everything=last)
            return True
        taken_back = bans.taken_back + sequence.num_output - position
        if taken_back <= self.limits.redraws_per_token * (bans.sent + GRACE):
            self.lifecycle.rewind(sequence, position)
            outcome.invalidated = True
        else:
            bans.back_to(position)
            outcome.out, outcome.ending = bans.rest(), Ending("abort", cause=bans.field)
        return False

    def _send(self, sequence: Sequence, out: list[NewToken]) -> None:
        """Tokens go out. The first ones say how much of the prompt was cached, how long the request waited, and the key
        of its noise."""
        request = sequence.request
        logprobs = [new.logprobs for new in out if new.logprobs is not None] or None
        records = [new.explanation for new in out if new.explanation is not None] or None
        first = (0, 0.0) if sequence.started else (sequence.num_cached, request.queued_s or 0.0)
        key = None if sequence.started else sequence.key
        sequence.started = True
        counts, sequence.draft_counts = sequence.draft_counts, []
        ids = [new.id for new in out]
        message = Tokens(request.id, request.epoch, sequence.index, ids, logprobs, *first, counts, key, records)
        self.lifecycle.send(sequence, message)


def ended(out: list[NewToken], what: str) -> list[NewToken]:
    """The same tokens; the record of the last one, if there is one, says what the token ended."""
    if not out or (record := out[-1].explanation) is None:
        return out
    return [*out[:-1], out[-1]._replace(explanation=msgspec.structs.replace(record, ended=what))]
