"""Appends a sampled token to its sequence: checks stops, bans, grammars, lengths and budgets, and decides the outcome.
This module knows no messages, and ends nothing itself.
"""

from __future__ import annotations

import time
from collections import abc, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tailrace.engine.checks import NewToken
from tailrace.engine.checks.banned_strings import GRACE
from tailrace.engine.checks.structured_output import RESTS, StructuredOutput
from tailrace.engine.checks.thinking_budget import ThinkingBudgetCheck
from tailrace.engine.ending import Ending
from tailrace.engine.sequence import Phase, Sequence, StopCheck
from tailrace.errors import RowError
from tailrace.sampling import Slots

# Processor time in a step for one call's searches for the shortest completion. A search continues in the next step.
SEARCH_S = 0.01


@dataclass(slots=True)
class TokenOutcome:
    """The outcome of a token.

    - out: the tokens that can be sent now.
    - invalidated: the tokens sampled after it do not count.
    - ending: the sequence ends with it.
    - ends: what it ends, as in Explanation.ended.
    - appended: it became history, even if it was removed again.
    """

    out: list[NewToken] = field(default_factory=list)
    invalidated: bool = False
    ending: Ending | None = None
    ends: str | None = None
    appended: bool = False

    @property
    def over(self) -> bool:
        """True if no further token of this step counts."""
        return self.invalidated or self.ending is not None


APPENDED = TokenOutcome(appended=True)  # and nothing else happens


class TokenAppender:
    """Appends tokens to sequences, and returns the outcome.

    Args:
        rewind: returns a sequence to an earlier output position.
        redraws_per_token: maximum number of discarded draws per delivered token.
    """

    def __init__(self, slots: Slots, rewind: Callable[[Sequence, int], None], redraws_per_token: float) -> None:
        self.slots, self._rewind, self._redraws_per_token = slots, rewind, redraws_per_token
        self._searched_s: defaultdict[tuple[bytes, str], float] = defaultdict(float)  # by call

    def begin_step(self) -> None:
        """Prepare for the tokens of another step."""
        self._searched_s.clear()

    def append_token(self, sequence: Sequence, new: NewToken, after_draft: bool) -> TokenOutcome:
        """Append one token to the sequence. Return whether it ends the sequence, or invalidates the tokens sampled
        after it.

        EOS is checked first, then the stop ids, then stop strings and patterns, then repetition, then the end of the
        grammar, then the length. If several apply, the first gives the reason.

        Args:
            after_draft: the token before it was a draft, whose keys and values are in the cache.

        Raises:
            RowError: the grammar does not allow the token, which was forced.
        """
        assert sequence.phase is Phase.RUNNING
        if sequence.constraint is not None and (instead := self.closing(sequence, sequence.constraint, new.id)):
            return instead
        return self.append(sequence, new, after_draft)

    def append_plain(self, sequence: Sequence, token: int) -> TokenOutcome | None:
        """Append one sampled token to a sequence that `is_plain`, as `append_token` does.

        None: nothing was appended, because the token may end the sequence by its id or by the length.
        """
        request = sequence.request
        if token in request.enders or len(sequence.tokens) + 1 >= request.max_len:
            return None
        self.slots.commit_drawn(sequence.slot, token)
        sequence.tokens.append(token)
        for check in sequence.stop_checks:
            if check.push(token):
                return TokenOutcome(ending=Ending("stop", cause=check.stop_reason), appended=True)
        return APPENDED

    def append(self, sequence: Sequence, new: NewToken, after_draft: bool = False) -> TokenOutcome:
        """Append one token, as `append_token` does, without checking whether a grammar must be closed now."""
        request, params, constraint = sequence.request, sequence.request.params, sequence.constraint
        stops = ends_output(sequence, new.id)
        self.slots.commit([sequence.slot], [[new.id]])
        sequence.append(new.id, after_draft)
        full = len(sequence.tokens) >= request.max_len
        outcome = TokenOutcome([new], appended=True)
        if constraint is not None and not stops:
            outcome.invalidated = push_to_grammar(constraint, new.id)
        complete = constraint is not None and constraint.finished
        if sequence.bans is not None:
            silent = stops and not params.include_stop_str_in_output
            if not self._check_bans(sequence, outcome, silent, last=stops or full or complete):
                return outcome
        thinking = sequence.thinking
        if thinking is not None and constraint is not None and constraint.thought_is_over:
            thinking.over, thinking = True, None
        if thinking is not None:
            thinking.read(new.id)
        by = new  # at an end bans hold no token back; stop checks get the sent tokens
        if stops:
            outcome.ending, outcome.ends = Ending("stop", new.id), "stop"
        elif found := first_stop(sequence, outcome.out):
            check, by = found
            outcome.ending, outcome.ends = Ending("stop", cause=check.stop_reason), check.stop_reason or "stop"
        elif complete:
            outcome.ending, outcome.ends = Ending("stop"), "grammar"
        elif full:
            outcome.ending, outcome.ends = Ending("length"), "length"
        elif thinking is not None and (forced := closing_ids(sequence, thinking)):
            self.slots.force(sequence.slot, forced)
            outcome.invalidated, outcome.ends = True, thinking.cause
        if outcome.ends is not None and by.explanation is not None:
            outcome.out = [mark_ended(sent, outcome.ends) if sent is by else sent for sent in outcome.out]
        return outcome

    def closing(self, sequence: Sequence, constraint: StructuredOutput, token: int) -> TokenOutcome | None:
        """Return the outcome that replaces the token if the text of a grammar must be closed now; None: append the
        token."""
        begun_s, name = time.thread_time(), sequence.request.shared_name
        spent_s = self._searched_s[name]
        until = RESTS if spent_s > SEARCH_S else begun_s + SEARCH_S - spent_s
        completion = constraint.forced_completion(token, sequence.tokens_left, until)
        self._searched_s[name] += time.thread_time() - begun_s
        if constraint.searching:
            return TokenOutcome(invalidated=True)  # the same token is sampled again until its outcome is known
        if completion is None:
            return None
        if not completion:  # the text is complete as it is
            held = [] if sequence.bans is None else sequence.bans.release(everything=True)
            return TokenOutcome(held, ending=Ending("stop"))
        self.slots.force(sequence.slot, completion)
        return TokenOutcome(invalidated=True)

    def _check_bans(self, sequence: Sequence, outcome: TokenOutcome, silent: bool, last: bool) -> bool:
        """Leave in `outcome.out` the tokens that can't become part of banned text any more.

        Return False if banned text is complete. Then the sequence has been rewound, or it ends because too many of its
        draws were discarded.

        Args:
            silent: the token leaves no text.
            last: it ends the sequence.
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
        if taken_back <= self._redraws_per_token * (bans.sent + GRACE):
            self._rewind(sequence, position)
            outcome.invalidated = True
        else:
            bans.back_to(position)
            outcome.out, outcome.ending = bans.rest(), Ending("abort", cause=bans.field)
        return False


def push_to_grammar(constraint: StructuredOutput, token: int) -> bool:
    """Return True if the grammar begins, or ends, with this token.

    Raises:
        RowError: the grammar does not allow the token, so the token was forced.
        GrammarLimitError: the token takes too much work, by the library's count.
    """
    try:
        return constraint.push(token)
    except ValueError as error:
        raise RowError(f"grammar: {error}") from error


def ends_output(sequence: Sequence, token: int) -> bool:
    """Return whether this next token ends the output as EOS or a stop id.

    It does so only beyond min_tokens, and where the grammar may end.
    """
    if sequence.constraint is not None:
        return sequence.constraint.ends(token, sequence.num_output)
    return token in sequence.request.enders and sequence.num_output >= sequence.request.params.min_tokens


def closing_ids(sequence: Sequence, thinking: ThinkingBudgetCheck) -> abc.Sequence[int]:
    """Return the ids that must follow the last token, because a thought ends: its budget is used up, for example.

    Forced tokens of the request come first. Text under a grammar is no thought, unless the grammar itself has thoughts.
    """
    constraint = sequence.constraint
    forced = thinking.close(may_close=sequence.num_output >= len(sequence.request.params.forced_token_ids))
    return forced if constraint is None or constraint.count_allowed(forced) == len(forced) else ()


def first_stop(sequence: Sequence, out: list[NewToken]) -> tuple[StopCheck, NewToken] | None:
    """Return the first stop check that one of these tokens completes, and the token."""
    return next(((check, sent) for check in sequence.stop_checks for sent in out if check.push(sent.id)), None)


def mark_ended(new: NewToken, what: str) -> NewToken:
    """Return the token. If it has a record, the record names what the token ended."""
    if new.explanation is None:
        return new
    return new._replace(explanation=msgspec.structs.replace(new.explanation, ended=what))
