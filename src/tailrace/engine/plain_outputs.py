"""The usual outputs of a step: one new token each, of sequences that need few checks (Sequence.plain).

Such an output has the same effects as in outputs.py, which is the specification. Processor time is measured for all
plain outputs together, because reading the clock may take longer than an output.
"""

from __future__ import annotations

import time
from collections import Counter

from tailrace.engine.appending import TokenAppender, TokenOutcome
from tailrace.engine.ending import Ending
from tailrace.engine.in_flight import SampledTokens
from tailrace.engine.isolation import Isolated
from tailrace.engine.lifecycle import Lifecycle
from tailrace.engine.sequence import Sequence
from tailrace.wire.messages import Tokens


class PlainOutputs:
    """Appends and sends plain outputs. `settle` charges their costs to the sequences and users."""

    def __init__(self, lifecycle: Lifecycle, appender: TokenAppender) -> None:
        self._lifecycle, self._appender, self._slots = lifecycle, appender, lifecycle.slots
        self._done: list[Sequence] = []
        self._begun_s = 0.0

    def process(self, one: SampledTokens) -> bool:
        """Append and send the one token of a plain sequence. Return False, having changed nothing, if the output is not
        a plain one."""
        sequence = one.sequence
        if not (sequence.plain and sequence.started) or one.draft.tokens or sequence.draft_counts:
            return False
        if not self._done:
            self._begun_s = time.thread_time()
        try:
            outcome = self._appender.append_plain(sequence, one.tokens[0])
        except BaseException as error:
            outcome = self._end_alone(sequence, error)
        if outcome is None:
            return False
        if outcome.appended:
            self._done.append(sequence)
            request, sequence.host_s = sequence.request, self._slots[sequence.slot].took_s
            message = Tokens(request.id, request.epoch, sequence.index, one.tokens, one.logprobs)
            self._lifecycle.outbox[request.client].append(message)
        if outcome.ending is not None:
            self.settle()
            self._lifecycle.end(sequence, outcome.ending)
        return True

    def settle(self) -> None:
        """Charge the processor time of the outputs since the last call to their sequences, and the tokens to the users.
        A user gets one charge for all of them."""
        if not self._done:
            return
        each_s = (time.thread_time() - self._begun_s) / len(self._done)
        counts = Counter[str]()
        for sequence in self._done:
            sequence.host_s += each_s
            counts[sequence.request.owner.user] += 1
        for user, count in counts.items():
            self._lifecycle.shares.add_output(user, count)
        self._lifecycle.counters.generated_tokens += len(self._done)
        self._done = []

    def _end_alone(self, sequence: Sequence, error: BaseException) -> TokenOutcome:
        """Return the outcome that ends the sequence with this error. Raise interrupts again."""
        with Isolated("the token could not be processed", sequence.request.id) as attempt:
            raise error
        return TokenOutcome(ending=Ending(error=attempt.error))
