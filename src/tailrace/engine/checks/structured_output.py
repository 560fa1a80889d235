"""One sequence's grammar: when it begins, what it allows, and how it ends in time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.grammar.base import BitmaskJob, Compiled, Matcher
from tailrace.grammar.filling import BitmaskFilling
from tailrace.options import MAX_DRAFTS, Grammar
from tailrace.text.stop_strings import SpanTracker

# Masks looked at in one search for the shortest completion: enough for 32 required fields; 5 to 60 ms in all.
WORK = 256
# Tokens to spare. With fewer, the completion is searched for after every token: the next one may open what takes as
# many to close.
TIGHT = 48
RESTS = -math.inf

Search = Generator[None, None, list[int] | None]
MASKS_S = 0.02  # in which the masks of drafts must be filled: fewer drafts where a mask takes long


@dataclass(frozen=True, slots=True)
class Late:
    """A mask that a step did not wait for: one job of a filling."""

    filling: BitmaskFilling
    place: int
    job: BitmaskJob


class StructuredOutput:
    """A grammar constrains the text. Where a part of the text is free (a thinking span), it constrains the text after
    that.

    bound: the grammar constrains the next token. opening: a token that may come next although the grammar does not know
    it, because it opens the free part. matcher: the state of the grammar after the text so far. late: the mask that the
    last step did not wait for. known: of the tokens sampled in one step, how many were sampled under a valid mask.
    """

    def __init__(self, grammar: Grammar, compiled: Compiled, token_bytes: TokenBytes) -> None:
        self._grammar, self.compiled, self._token_bytes = grammar, compiled, token_bytes
        self.late: Late | None = None
        self._leaving = False  # a forced completion has been taken
        self.mask_s = 0.0  # that its last masks took, each
        self.known = sys.maxsize
        self._begin()

    def _begin(self) -> None:
        after = self._grammar.after
        self.bound = after is None or not after.opened
        self.opening = self._grammar.opening_token_id if self.bound and after is not None else None
        self.matcher: Matcher = self.compiled.matcher()
        self._spans = SpanTracker(() if after is None else (after,))
        self._text = TokenText(self._token_bytes)
        self._pushed = 0  # tokens that the matcher has taken
        self._look_again()

    def _look_again(self) -> None:
        self._completion: list[int] | None = None  # the shortest completion from here, if known
        self._search: Search | None = None  # one that is under way
        self._after: tuple[int, list[int]] | None = None  # a token that may come next, and the completion without it
        # tokens left when it is looked for again
        self._due = sys.maxsize if self._grammar.close_in_time and not self._leaving else -1

    @property
    def waits(self) -> bool:
        """A mask of its grammar is still being filled. The sequence sits out the steps until that is over."""
        return self.compiled.busy is not None and not self.compiled.busy.over

    @property
    def finished(self) -> bool:
        """Only the end may follow."""
        return self.bound and self.matcher.finished

    def allows(self, drafts: Sequence[int]) -> int:
        """How many of these drafts, from the first on, are allowed. Where the text is free all of them are: where the
        free part ends is found when they have been sampled."""
        if not self.bound:
            return len(drafts)
        return self.matcher.prefix(drafts if self.opening is None else drafts[:1])

    @property
    def affordable(self) -> int:
        """Drafts whose masks can be filled in MASKS_S."""
        return int(MASKS_S / self.mask_s) if self.mask_s * MAX_DRAFTS > MASKS_S else MAX_DRAFTS

    def forced(self, count: int, within_s: float) -> list[int]:
        """Tokens that can hardly be otherwise (jump-forward), at most so many, found within so much processor time."""
        return self.matcher.forced(count, within_s) if count > 0 and self.bound and self.opening is None else []

    def push(self, token: int) -> bool:
        """One more token. True if the grammar begins or ends with it: tokens sampled after it were sampled under other
        rules.

        Raises:
            ValueError: the grammar does not allow it.
        """
        if not self.bound and token == self._grammar.entry_token_id and self.matcher.accept(token):
            self.bound = True
            self._pushed += 1
            return True
        opens, self.opening = token == self.opening, None
        if opens or not self.bound:
            for char in self._text.push(token):
                self._spans.push(char)
            before, self.bound = self.bound, self._spans.inside is None
            if opens or self.bound != before:
                return True
            if not self.bound:
                return False
        if not self.matcher.accept(token):
            raise ValueError("the grammar does not allow what had to be said")
        self._pushed += 1
        return False

    def back_to(self, tokens: Sequence[int]) -> None:
        """Take back all tokens that were pushed after these, which are all output tokens that stay."""
        if self._grammar.after is not None:  # the text before the grammar is not kept
            self._begin()
            for token in tokens:
                self.push(token)
            return
        self.matcher.rollback(self._pushed - len(tokens))
        self._pushed = len(tokens)
        self._look_again()

    def forced_completion(self, token: int, tokens_left: int, until: float = math.inf) -> list[int] | None:
        """The tokens that must follow instead of `token`. After `token` the text could no longer be completed within
        `tokens_left` tokens (`token` included). [] if the text is complete as it is. None if the token may follow, or
        if it is too late already.

        The fewer tokens there are to spare, the more often the shortest completion is searched for.

        Args:
            until: time.thread_time at which the search pauses (RESTS: at once). Then `searching` is True, and the same
                must be asked again.
        """
        if not self.bound or self.opening is not None or tokens_left > self._due:
            return None
        if self._after is not None and self._after[0] != token:
            self._after = self._search = None  # it was looked for what comes after another one
        if self._after is None:
            completion = self._completion
            if completion is None:
                completion = self._found(self.matcher, tokens_left, until)
                if self.searching:
                    return None
            self._completion = None
            if completion is None:
                self._due = tokens_left - TIGHT
                return None
            if (slack := tokens_left - len(completion)) > TIGHT:
                self._due = tokens_left - slack // 4
                return None
            if completion[:1] == [token]:
                self._completion = completion[1:]
                return None
            self._after = token, completion
        return self._either(*self._after, tokens_left, until)

    @property
    def closes(self) -> bool:
        """It completes the text before its last token is reached."""
        return self._grammar.close_in_time

    @property
    def searching(self) -> bool:
        """A search for the shortest completion is under way. No token may be appended before it is over."""
        return self._search is not None

    def _either(self, token: int, completion: list[int], tokens_left: int, until: float) -> list[int] | None:
        """This completion, unless the text can still be completed after the token."""
        after, walker = None, self.matcher.fork()
        if self.searching or walker.accept(token):
            after = self._found(walker, tokens_left - 1, until)
            if self.searching:
                return None
        self._after = None
        self._completion = completion if after is None else after
        if after is None:
            self._leaving = True
            return completion
        return None

    def _found(self, place: Matcher, tokens_left: int, until: float) -> list[int] | None:
        """The shortest completion; None if there is none, or while the search is under way. Looks at one place at
        least, unless the search pauses."""
        if self._search is None:
            self._search = place.completion(tokens_left, WORK)
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
