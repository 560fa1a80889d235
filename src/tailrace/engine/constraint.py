"""One sequence's grammar: when it begins, what it allows, and how it ends in time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from tailrace.engine.spelling import Spelling, TokenText
from tailrace.grammar.base import Compiled, Matcher
from tailrace.options import Grammar
from tailrace.text.stops import Shield

WORK = 256  # masks looked at in one search for a way out, of which there are few: enough for 32 required fields; 5 to 60 ms
TIGHT = 48  # tokens to spare; with fewer, it is searched for after every token: the next one may open what takes as many to close


class Constraint:
    """The grammar rules the text, or, where a stretch of it is free (what the model thinks), the text after that.

    bound: it rules the next token. opening: a token that may come next although the grammar does not know it, because it opens the
    free stretch. matcher: where the text stands in the grammar.
    """

    def __init__(self, grammar: Grammar, compiled: Compiled, spelling: Spelling) -> None:
        self._grammar, self._compiled, self._spelling = grammar, compiled, spelling
        self._leaving = False  # a way out has been taken
        self._begin()

    def _begin(self) -> None:
        after = self._grammar.after
        self.bound = after is None or not after.opened
        self.opening = self._grammar.opening_token_id if self.bound and after is not None else None
        self.matcher: Matcher = self._compiled.matcher()
        self._shield = Shield(() if after is None else (after,))
        self._text = TokenText(self._spelling)
        self._way_out: list[int] | None = None  # what would close the text from here, where it is known
        # tokens left when it is looked for again
        self._due = sys.maxsize if self._grammar.close_in_time and not self._leaving else -1

    @property
    def finished(self) -> bool:
        """Nothing but the end may follow."""
        return self.bound and self.matcher.finished

    def allows(self, drafts: Sequence[int]) -> int:
        """How many of these guesses, from the first on, may come. Where the text is free all may: where it ceases to be is found when they
        have been drawn."""
        if not self.bound:
            return len(drafts)
        return self.matcher.prefix(drafts if self.opening is None else drafts[:1])

    def forced(self) -> list[int]:
        """Guesses that can hardly be wrong."""
        return self.matcher.forced() if self.bound and self.opening is None else []

    def push(self, token: int) -> bool:
        """One more token. True if with it the grammar began or gave way: what was drawn after it was drawn under other rules.

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
        return False

    def replay(self, tokens: Iterable[int]) -> None:
        """Begin again, with these tokens."""
        self._begin()
        for token in tokens:
            self.push(token)

    def way_out(self, token: int, room: int) -> list[int] | None:
        """What must be said instead of `token`, because after it the text could not be closed any more within `room` tokens, it included:
        [] if the text is complete as it is. None: nothing stands against the token, or it is too late already.

        It is looked for the more often the fewer tokens there are to spare.
        """
        if not self.bound or self.opening is not None or room > self._due:
            return None
        way = self.matcher.closing(room, WORK) if self._way_out is None else self._way_out
        self._way_out = None
        if way is None:
            self._due = room - TIGHT
        elif (slack := room - len(way)) > TIGHT:
            self._due = room - slack // 4
        elif way[:1] == [token]:
            self._way_out = way[1:]
        else:
            after = None
            if self.matcher.accept(token):
                after = self.matcher.closing(room - 1, WORK)
                self.matcher.rollback(1)
            self._way_out = way if after is None else after
            if after is None:
                self._leaving = True
                return way
        return None
