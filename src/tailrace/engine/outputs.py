"""Processes a step's outputs: appends sampled tokens one by one, queues messages, ends sequences. Tokens sampled after
a stop are discarded. appending.py decides the outcome of each token.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tailrace.config import SchedulerConfig
from tailrace.engine.appending import TokenAppender, TokenOutcome
from tailrace.engine.checks import NewToken
from tailrace.engine.draws import SampleSkippedError
from tailrace.engine.ending import Ending
from tailrace.engine.explanations import KeptRows, name_drafter
from tailrace.engine.in_flight import SampledTokens
from tailrace.engine.isolation import Isolated
from tailrace.engine.lifecycle import Lifecycle
from tailrace.engine.memory import MemoryLimit
from tailrace.engine.plain_outputs import PlainOutputs
from tailrace.engine.predicted import count_found
from tailrace.engine.sequence import Phase, Sequence
from tailrace.errors import NothingLeftError, RowError, TailraceError
from tailrace.explain.record import Explanation
from tailrace.kernels.status import EMPTY, MESSAGES, NAMES, OK
from tailrace.sampling import Sampler
from tailrace.wire.messages import Tokens


@dataclass(slots=True)
class HostTime:
    """Processor time in one step, by call. taken_s: of all its outputs. last_s: of its last output."""

    taken_s: defaultdict[tuple[bytes, str], float] = field(default_factory=lambda: defaultdict(float))
    last_s: dict[tuple[bytes, str], float] = field(default_factory=dict)


class OutputProcessor:
    """Turns samples into history and messages.

    Args:
        appender: decides the outcome of a token. sampler: explains its draws. memory_limit: charges the memory of
            outputs to requests.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        limits: SchedulerConfig,
        appender: TokenAppender,
        sampler: Sampler,
        memory_limit: MemoryLimit,
    ) -> None:
        self.lifecycle, self.slots, self.counters = lifecycle, lifecycle.slots, lifecycle.counters
        self.limits, self.appender, self.sampler, self.memory_limit = limits, appender, sampler, memory_limit
        self._plain = PlainOutputs(lifecycle, appender)
        self._spent = HostTime()

    def begin_step(self) -> None:
        """Prepare for the outputs of another step."""
        self._spent = HostTime()
        self.appender.begin_step()

    def process_samples(self, samples: Iterable[SampledTokens], in_flight: Callable[[Sequence], bool]) -> None:
        """Process all samples of a step, or a part of them.

        in_flight: returns whether a sequence is in a step whose forward pass has been launched.
        """
        plain = self._plain
        try:
            for one in samples:
                if one.sequence.phase is not Phase.RUNNING:
                    continue
                fine = one.error is None and one.status == OK
                if (
                    fine
                    and not self._is_over_budget(one.sequence)
                    and not self.memory_limit.near
                    and plain.process(one)
                ):
                    continue
                plain.settle()  # what comes now has costs of its own
                self._process_sample(one, in_flight)
        finally:
            plain.settle()

    def _process_sample(self, one: SampledTokens, in_flight: Callable[[Sequence], bool]) -> None:
        """Process the samples of one sequence."""
        sequence = one.sequence
        if one.error is not None:  # first, because without a mask the row may have no status
            self._without_mask(sequence, one.error)
        elif one.status != OK:
            self._without_token(sequence, one.status)
        elif self._is_over_budget(sequence):
            # From the next step on, the sequences of this call take turns. They then sample what they sampled now.
            sequence.host_s = max(sequence.host_s, self._spent.last_s[sequence.request.shared_name])
            self.lifecycle.trim_blocks(sequence)
        else:
            self._time_output(one)
            beyond = bool(one.draft.tokens) or sequence.num_uncomputed == 0  # blocks beyond its tokens are possible
            # A step in flight is writing to those blocks.
            if beyond and sequence.phase is Phase.RUNNING and not in_flight(sequence):
                self.lifecycle.trim_blocks(sequence)

    def _is_over_budget(self, sequence: Sequence) -> bool:
        """Return whether other outputs of the sequence's call have taken all of the call's time in this step. Plain
        outputs do not count."""
        taken_s = self._spent.taken_s
        return bool(taken_s) and taken_s.get(sequence.request.shared_name, 0.0) > self.limits.host_ms / 1e3

    def _time_output(self, one: SampledTokens) -> None:
        """Process an output, and record its cost for the host."""
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
        """Discard a sample. End the sequence, unless the sample was only skipped."""
        if isinstance(error, SampleSkippedError):
            self.lifecycle.trim_blocks(sequence)
            return
        cause = error if isinstance(error, TailraceError) else RowError(f"grammar: {error}")
        self.lifecycle.end(sequence, Ending(error=cause))

    def _without_token(self, sequence: Sequence, status: int) -> None:
        """End a sequence for which no token could be sampled. If the request's own fields exclude all tokens, the model
        is not at fault."""
        if status == EMPTY and sequence.bans is not None:
            if out := sequence.bans.rest():
                self._send_tokens(sequence, out)
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
        """Append the tokens that verification kept: the first is new, each further one follows an accepted draft.

        Then send the tokens that can be sent, and end the sequence if a token ended it.
        """
        sequence = one.sequence
        tokens = one.tokens if sequence.constraint is None else one.tokens[: sequence.constraint.known]
        records: list[Explanation] = []
        if one.kept is not None:
            with Isolated("the tokens could not be explained", sequence.request.id) as explaining:
                records = self._explain_tokens(one, one.kept)
            if explaining.error is not None:
                self.lifecycle.end(sequence, Ending(error=explaining.error))
                return
        out: list[NewToken] = []
        before, sampled, ending = len(sequence.tokens), 0, None
        for place, token in enumerate(tokens):
            outcome = TokenOutcome()
            with Isolated("the token could not be processed", sequence.request.id) as attempt:
                reported = one.logprobs[place] if one.logprobs else None, records[place] if records else None
                new = NewToken(token, *reported, one.survivors[place] if one.survivors else None)
                outcome = self.appender.append_token(sequence, new, after_draft=place > 0)
            sampled += outcome.appended
            ending = outcome.ending if attempt.error is None else Ending(error=attempt.error)
            out += outcome.out
            if outcome.over or attempt.error is not None:
                break
        self.counters.generated_tokens += sampled
        if one.draft.tokens and not one.draft.forced:  # the client counts accepted drafts that became output
            appended = max(0, len(sequence.tokens) - before)
            sequence.draft_counts += (len(one.draft.tokens), min(one.accepted, appended))
        self.lifecycle.shares.add_output(sequence.user, sampled * len(sequence.pair))
        if out:
            self._send_tokens(sequence, out)
        if ending is not None:
            self.lifecycle.end(sequence, ending)

    def _explain_tokens(self, one: SampledTokens, kept: KeptRows) -> list[Explanation]:
        """Return the explanations of the tokens."""
        params, drafter = one.sequence.request.params, self.lifecycle.speculator.config.drafter
        records = kept.explain(self.sampler, params, one.tokens)
        return [name_drafter(record, one.draft, drafter, params.greedy) for record in records]

    def _send_tokens(self, sequence: Sequence, out: list[NewToken]) -> None:
        """Send tokens. The first message also has the number of cached prompt tokens, the waiting time, and the key of
        the noise."""
        request = sequence.request
        logprobs = [new.logprobs for new in out if new.logprobs is not None] or None
        records = [new.explanation for new in out if new.explanation is not None] or None
        survivors = [new.survivors for new in out if new.survivors is not None] or None
        first = (0, 0.0) if sequence.started else (sequence.num_cached, request.queued_s or 0.0)
        key = None if sequence.started else sequence.key
        sequence.started = True
        counts, sequence.draft_counts = sequence.draft_counts, []
        ids = [new.id for new in out]
        reports = (key, records, survivors)
        found = count_found(sequence)
        message = Tokens(request.id, request.epoch, sequence.index, ids, logprobs, *first, counts, *reports, found)
        self.lifecycle.send(sequence, message)
