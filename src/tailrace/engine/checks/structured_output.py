"""One sequence's grammar: when it begins, what it allows, and how it ends in time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.grammar.base import BitmaskJob, Compiled, Matcher
from tailrace.grammar.bitmasks import Filling
from tailrace.options import MAX_DRAFTS, Grammar
from tailrace.text.stop_strings import SpanTracker

# Masks looked at in one search for the shortest completion: enough for 32 required fields; 5 to 60 ms in all.
WORK = 256
# Tokens to spare. With fewer, the completion is searched for after every token: the next one may open what takes as many
# to close.
TIGHT = 48
RESTS = -math.inf

Search = Generator[None, None, list[int] | None]
MASKS_S = 0.02  # in which the masks of guesses must be filled: fewer guesses where a mask takes long


@dataclass(frozen=True, slots=True)
class Late:
    """A job of a filling."""

    filling: Filling
    place: int
    job: BitmaskJob


class StructuredOutput:
    """The grammar rules the text, or, where a stretch of it is free (what the model thinks), the text after that.

    bound: it rules the next token. opening: a token that may come next although the grammar does not know it, because
    it opens the free stretch. matcher: where the text stands in the grammar. late: the mask that its last step did not
    wait for.
    """

    def __init__(self, grammar: Grammar, compiled: Compiled, token_bytes: TokenBytes) -> None:
        self._grammar, self.compiled, self._spelling = grammar, compiled, token_bytes
        self.late: Late | None = None
        self._leaving = False  # a way out has been taken
        self.mask_s = 0.0  # that its last masks took, each
        self.known = sys.maxsize  # of the tokens drawn in one step, so many were drawn under masks that are right
        self._begin()

    def _begin(self) -> None:
        after = self._grammar.after
        self.bound = after is None or not after.opened
        self.opening = self._grammar.opening_token_id if self.bound and after is not None else None
        self.matcher: Matcher = self.compiled.matcher()
        self._shield = SpanTracker(() if after is None else (after,))
        self._text = TokenText(self._spelling)
        self._pushed = 0  # tokens that the matcher has taken
        self._look_again()

    def _look_again(self) -> None:
        self._way_out: list[int] | None = None  # what would close the text from here, where it is known
        self._search: Search | None = None  # one that is under way
        self._after: tuple[int, list[int]] | None = None  # a token that may come next, and the way out without it
        # tokens left when it is looked for again
        self._due = sys.maxsize if self._grammar.close_in_time and not self._leaving else -1

    @property
    def waits(self) -> bool:
        """A mask of its grammar is being filled that a step did not wait for: it sits out what comes before that is
        over."""
        return self.compiled.busy is not None and not self.compiled.busy.over

    @property
    def finished(self) -> bool:
        """Nothing but the end may follow."""
        return self.bound and self.matcher.finished

    def allows(self, drafts: Sequence[int]) -> int:
        """How many of these guesses, from the first on, may come. Where the text is free all may: where it ceases to be
        is found when they have been drawn."""
        if not self.bound:
            return len(drafts)
        return self.matcher.prefix(drafts if self.opening is None else drafts[:1])

    @property
    def affordable(self) -> int:
        """Guesses whose masks don't take too long."""
        return int(MASKS_S / self.mask_s) if self.mask_s * MAX_DRAFTS > MASKS_S else MAX_DRAFTS

    def forced(self, count: int, within_s: float) -> list[int]:
        """Guesses that can hardly be wrong, at most so many, found within so much processor time."""
        return self.matcher.forced(count, within_s) if count > 0 and self.bound and self.opening is None else []

    def push(self, token: int) -> bool:
        """One more token. True if with it the grammar began or gave way: what was drawn after it was drawn under other
        rules.

        Raises:
            ValueError: the grammar does not allow it.
        """
        opens, self.opening = token == self.opening, None
        if opens or not self.bound:
            for char in self._text.push(token):
                self._shield.push(char)
            before, self.bound = self.bound, self._shield.inside is None
            if opens or self.bound != before:
                return True
            if not self.bound:
                return False
        if not self.matcher.accept(token):
            raise ValueError("the grammar does not allow what had to be said")
        self._pushed += 1
        return False

    def back_to(self, tokens: Sequence[int]) -> None:
        """Take back what was pushed after these tokens, the first of all."""
        if self._grammar.after is not None:  # the text before the grammar is not kept
            self._begin()
            for token in tokens:
                self.push(token)
            return
        self.matcher.rollback(self._pushed - len(tokens))
        self._pushed = len(tokens)
        self._look_again()

    def way_out(self, token: int, room: int, until: float = math.inf) -> list[int] | None:
        """What must be said instead of `token`, because after it the text could not be closed any more within `room`
        tokens, it included: [] if the text is complete as it is. None: nothing stands against the token, or it is too
        late already.

        It is looked for the more often the fewer tokens there are to spare.

        Args:
            until: of time.thread_time. When that has come (RESTS: it has) the search rests, and `searching` is True:
                the same must be asked again.
        """
        if not self.bound or self.opening is not None or room > self._due:
            return None
        if self._after is not None and self._after[0] != token:
            self._after = self._search = None  # it was looked for what comes after another one
        if self._after is None:
            way = self._way_out
            if way is None:
                way = self._found(self.matcher, room, until)
                if self.searching:
                    return None
            self._way_out = None
            if way is None:
                self._due = room - TIGHT
                return None
            if (slack := room - len(way)) > TIGHT:
                self._due = room - slack // 4
                return None
            if way[:1] == [token]:
                self._way_out = way[1:]
                return None
            self._after = token, way
        return self._either(*self._after, room, until)

    @property
    def closes(self) -> bool:
        """It ends the text in time."""
        return self._grammar.close_in_time

    @property
    def searching(self) -> bool:
        """A search for a way out is under way: nothing may be said before it is over."""
        return self._search is not None

    def _either(self, token: int, way: list[int], room: int, until: float) -> list[int] | None:
        """The way, unless there is still one after the token."""
        after, walker = None, self.matcher.fork()
        if self.searching or walker.accept(token):
            after = self._found(walker, room - 1, until)
            if self.searching:
                return None
        self._after = None
        self._way_out = way if after is None else after
        if after is None:
            self._leaving = True
            return way
        return None

    def _found(self, place: Matcher, room: int, until: float) -> list[int] | None:
        """What the search finds, of which at least one place is looked at, unless it rests; None also while it is under
        way."""
        if self._search is None:
            self._search = place.closing(room, WORK)
        if until == RESTS:
            return None
        try:
            next(self._search)
            while time.thread_time() < until:
                next(self._search)
        except StopIteration as end:
            self._search = None
            return end.value
        return None
