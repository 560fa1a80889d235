"""One sequence's grammar: where it begins, which tokens it allows, and how the text is completed in time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tailrace.engine.checks.early_answer import EarlyAnswer
from tailrace.engine.checks.enders import Enders, TokenBits
from tailrace.engine.checks.free_part import FreePart
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.base import BitmaskJob, Compiled, Matcher
from tailrace.grammar.filling import BitmaskFilling
from tailrace.request.options import MAX_DRAFTS, Grammar

# The most masks in one search for the shortest completion: enough for 32 required fields; 5 to 60 ms in all.
WORK = 256
# Tokens to spare. With fewer, the completion is searched for after every token: the next token may open parts that take
# as many to close.
TIGHT = 48
RESTS = -math.inf
NOT_ALLOWED = "the grammar does not allow what had to be said"

Search = Generator[None, None, list[int] | None]
MASKS_S = 0.02  # for the masks of drafts; slow masks mean fewer drafts


@dataclass(frozen=True, slots=True)
class Late:
    """A mask that a step did not wait for: one job of a filling."""

    filling: BitmaskFilling
    place: int
    job: BitmaskJob


class StructuredOutput:
    """A grammar that constrains the text. If a part of the text is free (a thinking span), it constrains the text after
    that.

    - matcher: the state of the grammar after the text so far.
    - late: the mask that the last step did not wait for.
    - known: how many of the tokens sampled in one step were sampled under a valid mask.
    """

    def __init__(self, grammar: Grammar, compiled: Compiled, token_bytes: TokenBytes, enders: Enders) -> None:
        self._grammar, self.compiled, self._token_bytes = grammar, compiled, token_bytes
        self._enders = enders
        self.late: Late | None = None
        self._leaving = False  # a forced completion has been taken
        self.mask_s = 0.0  # seconds that each of its last masks took
        self.known = sys.maxsize
        self._start_output()

    def _start_output(self) -> None:
        self._begin_grammar()
        entry = self._grammar.entry_token_ids
        self._free = FreePart(
            self._grammar, self._token_bytes, entry if self.matcher.prefix(entry) == len(entry) else ()
        )
        self._early: EarlyAnswer | None = None
        if self._free.inside:
            self._early = EarlyAnswer(self._grammar, self.compiled.matcher(), self._token_bytes, self._enders)

    def _begin_grammar(self) -> None:
        self.matcher: Matcher = self.compiled.matcher()
        self._lost = False  # the text is the beginning of an opening marker, which the grammar does not allow
        self._pushed = 0  # tokens that the matcher has taken
        self._look_again()

    def _look_again(self) -> None:
        self._completion: list[int] | None = None  # The shortest completion from here, if known.
        self._search: Search | None = None  # The current search.
        self._after: tuple[int, list[int]] | None = None  # A possible next token, and the completion without it.
        # The number of tokens left at which the completion is searched for again.
        self._due = sys.maxsize if self._grammar.close_in_time and not self._leaving else -1

    @property
    def waits(self) -> bool:
        """True while a mask of its grammar is still being filled. The sequence then skips steps."""
        return self.compiled.busy is not None and not self.compiled.busy.over

    @property
    def bound(self) -> bool:
        """True if the grammar constrains the next token."""
        return not self._free.inside

    @property
    def settled(self) -> bool:
        """True if the grammar alone constrains the next token: no marker may open a free part any more."""
        return self.bound and not self._free.openings

    @property
    def thought_is_over(self) -> bool:
        """True if the grammar begins after a thought, and has begun."""
        return self.settled and self._grammar.after is not None

    @property
    def fillable(self) -> bool:
        """True if the matcher knows which tokens may come next."""
        return self.bound and not self._lost

    @property
    def finished(self) -> bool:
        """True if only the end may follow."""
        return self.fillable and self.matcher.finished

    def ends(self, token: int, num_output: int) -> bool:
        """Return whether the token, EOS or a stop id, ends the output here. num_output: tokens before it."""
        if self._early is not None:
            return self._early.may_end(token, num_output)
        return self._enders.end(token, num_output) and self.fillable and self.matcher.complete

    def count_allowed(self, drafts: Sequence[int]) -> int:
        """Return how many of these drafts, from the first on, are allowed.

        In free text all of them are: the end of the free part is found when they have been sampled.
        """
        if not self.bound:
            return len(drafts)
        return 0 if self._lost else self.matcher.prefix(drafts if self.settled else drafts[:1])

    def complete_masks(self, masks: torch.Tensor, num_output: int) -> None:
        """Add to the grammar's masks the tokens that the grammar does not know: those that end the output, and those
        that open a free part.

        Args:
            masks: int32 [rows, ⌈V / 32⌉], on the CPU. num_output: tokens of the output before the first row.
        """
        rows = masks.numpy().view(np.uint32)
        if not self._lost:
            self._enders.complete(rows, num_output)
        if self._free.openings:
            TokenBits.of(self._free.next_openings).set_bits(rows[0])

    def write_free(self, masks: torch.Tensor, drafts: Sequence[int], num_output: int) -> None:
        """Write the masks of the free part. They forbid two kinds of tokens:

        - tokens that end the output, which would then lack the part under the grammar, unless the text is that part;
        - tokens that end the free part and contain more text.

        Args:
            masks: int32 [len(drafts) + 1, ⌈V / 32⌉], on the CPU, of ones. num_output: tokens of the output before the
                first row.
        """
        rows = masks.numpy().view(np.uint32)
        if self._early is not None:
            self._early.allow_ends(rows, drafts, num_output)
        else:  # the model has opened the free part by itself
            for row in rows:
                self._enders.silent_bits.clear(row)
        self._free.exclude(rows, drafts)

    @property
    def affordable(self) -> int:
        """The number of drafts whose masks can be filled in MASKS_S."""
        return int(MASKS_S / self.mask_s) if self.mask_s * MAX_DRAFTS > MASKS_S else MAX_DRAFTS

    def forced(self, count: int, within_s: float) -> list[int]:
        """Return tokens that almost certainly come next (jump-forward): at most `count`, found within this processor
        time."""
        return self.matcher.forced(count, within_s) if count > 0 and self.settled else []

    def push(self, token: int) -> bool:
        """Add a token. Return True if the grammar begins or ends with it: then tokens sampled after it were sampled
        under other rules.

        Raises:
            ValueError: the grammar does not allow it.
        """
        free = self._free
        if free.inside:
            return self._push_free(token)
        if free.openings:
            if free.push(token):
                self._begin_grammar()  # the grammar may have taken the marker's first tokens as its own
                return True
            if free.openings:
                self._lost = self._lost or not self.matcher.accept(token)
                return True
        if self._lost or not self.matcher.accept(token):
            raise ValueError(NOT_ALLOWED)
        self._pushed += 1
        return False

    def _push_free(self, token: int) -> bool:
        """Add a token of the free part, or its end."""
        if token in self._enders.silent:
            raise ValueError(NOT_ALLOWED)
        ended = self._free.push(token)
        if ended:
            self._early = None
        elif self._early is not None:
            self._early.push(token)
        if ended and self._free.entered:  # the grammar's first tokens, however they were spelt
            for first in self._grammar.entry_token_ids:
                self.matcher.accept(first)
                self._pushed += 1
        return ended

    def back_to(self, tokens: Sequence[int]) -> None:
        """Remove all tokens that were pushed after these. `tokens` are all output tokens that stay."""
        if self._grammar.after is not None:  # the text before the grammar is not kept
            self._start_output()
            for token in tokens:
                self.push(token)
            return
        self.matcher.rollback(self._pushed - len(tokens))
        self._pushed = len(tokens)
        self._look_again()

    def forced_completion(self, token: int, tokens_left: int, until: float = math.inf) -> list[int] | None:
        """Return the tokens that must follow instead of `token`, because after `token` the text could no longer be
        completed.

        []: the text is complete already. None: the token may follow, or it is too late. The fewer spare tokens are
        left, the more often the shortest completion is searched.

        Args:
            tokens_left: the most tokens that may still follow, `token` included.
            until: time.thread_time at which the search pauses (RESTS: at once). Then `searching` is True, and the same
                call must be repeated.
        """
        if not self.settled or tokens_left > self._due:
            return None
        if self._after is not None and self._after[0] != token:
            self._after = self._search = None  # the search was for the text after another token
        if self._after is None:
            completion = self._completion
            if completion is None:
                completion = self._search_completion(self.matcher, tokens_left, until)
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
        return self._choose_completion(*self._after, tokens_left, until)

    @property
    def closes(self) -> bool:
        """True if it completes the text before the sequence's last token."""
        return self._grammar.close_in_time

    @property
    def searching(self) -> bool:
        """True while a search for the shortest completion is under way. No token may be appended before it ends."""
        return self._search is not None

    def _choose_completion(self, token: int, completion: list[int], tokens_left: int, until: float) -> list[int] | None:
        """Return this completion, unless the text can still be completed after the token."""
        after, walker = None, self.matcher.fork()
        if self.searching or walker.accept(token):
            after = self._search_completion(walker, tokens_left - 1, until)
            if self.searching:
                return None
        self._after = None
        self._completion = completion if after is None else after
        if after is None:
            self._leaving = True
            return completion
        return None

    def _search_completion(self, place: Matcher, tokens_left: int, until: float) -> list[int] | None:
        """Return the shortest completion; None if it does not exist, or while the search is under way.

        At least one place is searched, unless the search pauses.
        """
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
