"""A token becomes history: checks of stops, bans, grammars, lengths and budgets, and what the token leads to. Knows no
messages, and ends nothing itself.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tailrace.engine.checks import NewToken
from tailrace.engine.checks.banned_strings import GRACE
from tailrace.engine.checks.structured_output import RESTS, StructuredOutput
from tailrace.engine.lifecycle import Ending
from tailrace.engine.sequence import Phase, Sequence, StopCheck
from tailrace.errors import RowError
from tailrace.grammar.bitmasks import in_time
from tailrace.sampling import Slots

# Processor time in a step for one call's searches for the shortest completion. A search goes on in the next step.
SEARCH_S = 0.01


@dataclass(slots=True)
class TokenOutcome:
    """What a token leads to. out: the tokens that can be sent now. invalidated: the tokens sampled after it do not
    count. ending: the sequence ends with it. ends: what it ends, as Explanation.ended has it. appended: it became
    history, if only to be taken back."""

    out: list[NewToken] = field(default_factory=list)
    invalidated: bool = False
    ending: Ending | None = None
    ends: str | None = None
    appended: bool = False

    @property
    def over(self) -> bool:
        """No further token of this step counts."""
        return self.invalidated or self.ending is not None


class TokenAppender:
    """Appends tokens to sequences, and says what follows.

    Args:
        rewind: takes a sequence back to an output position. redraws_per_token: how often banned text may be taken back.
        grammar_step_s: processor time of one token in a grammar; None: there are no grammars.
    """

    def __init__(
        self,
        slots: Slots,
        rewind: Callable[[Sequence, int], None],
        redraws_per_token: float,
        grammar_step_s: float | None,
    ) -> None:
        self.slots, self._rewind = slots, rewind
        self._redraws_per_token, self._grammar_step_s = redraws_per_token, grammar_step_s
        self._searched_s: defaultdict[tuple[bytes, str], float] = defaultdict(float)  # by call

    def begin_step(self) -> None:
        """The tokens of another step come next."""
        self._searched_s.clear()

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
        if sequence.constraint is not None and (instead := self.closing(sequence, sequence.constraint, new.id)):
            return instead
        return self.append(sequence, new, after_draft)

    def append(self, sequence: Sequence, new: NewToken, after_draft: bool = False) -> TokenOutcome:
        """The same for a token that is known not to be followed by too much."""
        request, params, constraint = sequence.request, sequence.request.params, sequence.constraint
        self.slots.commit([sequence.slot], [[new.id]])
        sequence.append(new.id, after_draft)
        stops = request.ends_output(new.id) and sequence.num_output > params.min_tokens
        full = len(sequence.tokens) >= request.max_len
        outcome = TokenOutcome([new], appended=True)
        if constraint is not None and not stops:
            outcome.invalidated = self._push_to_grammar(constraint, new.id)
        complete = constraint is not None and constraint.finished
        if sequence.bans is not None:
            silent = stops and not params.include_stop_str_in_output
            if not self._check_bans(sequence, outcome, silent, last=stops or full or complete):
                return outcome
        by = new  # where it ends something, bans hold nothing back; a stop check is told of tokens as they are sent
        if stops:
            outcome.ending, outcome.ends = Ending("stop", new.id), "stop"
        elif found := first_stop(sequence, outcome.out):
            check, by = found
            outcome.ending, outcome.ends = Ending("stop", cause=check.stop_reason), check.stop_reason or "stop"
        elif complete:
            outcome.ending, outcome.ends = Ending("stop"), "grammar"
        elif full:
            outcome.ending, outcome.ends = Ending("length"), "length"
        elif sequence.thinking is not None and (forced := sequence.thinking.push(new.id)):
            self.slots.force(sequence.slot, forced)
            outcome.invalidated, outcome.ends = True, "thinking_token_budget"
        if outcome.ends is not None and by.explanation is not None:
            outcome.out = [ended(sent, outcome.ends) if sent is by else sent for sent in outcome.out]
        return outcome

    def closing(self, sequence: Sequence, constraint: StructuredOutput, token: int) -> TokenOutcome | None:
        """Where the text of a grammar must be closed now, what happens instead of the token; None: the token may be
        appended."""
        begun_s, name = time.thread_time(), sequence.request.shared_name
        spent_s = self._searched_s[name]
        until = RESTS if spent_s > SEARCH_S else begun_s + SEARCH_S - spent_s
        completion = constraint.forced_completion(token, sequence.tokens_left, until)
        self._searched_s[name] += time.thread_time() - begun_s
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
        if taken_back <= self._redraws_per_token * (bans.sent + GRACE):
            self._rewind(sequence, position)
            outcome.invalidated = True
        else:
            bans.back_to(position)
            outcome.out, outcome.ending = bans.rest(), Ending("abort", cause=bans.field)
        return False


def first_stop(sequence: Sequence, out: list[NewToken]) -> tuple[StopCheck, NewToken] | None:
    """The first stop check that one of these tokens completes, and the token."""
    return next(((check, sent) for check in sequence.stop_checks for sent in out if check.push(sent.id)), None)


def ended(new: NewToken, what: str) -> NewToken:
    """The token; its record, if there is one, says what it ended."""
    if new.explanation is None:
        return new
    return new._replace(explanation=msgspec.structs.replace(new.explanation, ended=what))
