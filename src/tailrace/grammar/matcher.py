"""The common part of all matchers: the end, its EOS ids, and rollback. A library's subclass adds the matching of text.

The library never sees an EOS id. So several EOS ids, and any number of them after the end, behave the same with any
library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy
import torch

from tailrace.errors import DeadEndError
from tailrace.grammar.vocabulary import Vocabulary

NO_TOKEN = "the grammar has no continuation here that the vocabulary can spell"


class GrammarMatcher(ABC):
    """The common part of base.Matcher, where the contracts of these methods are."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.slow = False
        self._taken = 0  # tokens of text
        self._ends = 0  # EOS ids after them
        self._eos = frozenset(vocabulary.eos)

    def accept(self, token: int) -> bool:
        if token in self._eos:
            if not self._ends and not self._is_complete():
                return False
            self._ends += 1
            return True
        if self._ends or not 0 <= token < self.vocabulary.vocab_size or not self._take_token(token):
            return False
        self._taken += 1
        return True

    def rollback(self, count: int) -> None:
        """Raises ValueError if `count` exceeds the accepted tokens."""
        if not 0 <= count <= self._taken + self._ends:
            raise ValueError(f"count must be in [0, {self._taken + self._ends}], got {count}")
        ends = min(count, self._ends)
        self._ends -= ends
        if count > ends:
            self._roll_back(count - ends)
            self._taken -= count - ends

    def fill(self, mask: torch.Tensor) -> None:
        """Raises DeadEndError: nothing may come next; GrammarLimitError: a limit of a step was reached."""
        words = mask.numpy()
        complete = self.complete
        if self._ends:
            words.fill(0)
        else:
            self._write_mask(mask)
        bits = words.view(numpy.uint32)
        for token in self.vocabulary.eos:
            bit = numpy.uint32(1 << (token % 32))
            bits[token // 32] = bits[token // 32] | bit if complete else bits[token // 32] & ~bit
        if not words.any():
            raise DeadEndError(NO_TOKEN)

    def prefix(self, tokens: Sequence[int]) -> int:
        if not len(tokens):
            return 0  # called at every step of a sequence without drafts; a fork costs more than all the rest
        walker = self.fork()
        return next((i for i, token in enumerate(tokens) if not walker.accept(token)), len(tokens))

    def takes(self, token: int) -> bool:
        """Return True if this token could be accepted."""
        return bool(self.prefix((token,)))

    @property
    def ended(self) -> bool:
        """True if an EOS id was accepted."""
        return bool(self._ends)

    @property
    def complete(self) -> bool:
        """True if the text so far is complete."""
        return bool(self._ends) or self._is_complete()

    @property
    def finished(self) -> bool:
        return bool(self._ends) or (self._is_complete() and self._only_end())

    def fork(self) -> Self:
        twin = self._copy_matcher()
        twin._taken, twin._ends, twin.slow = self._taken, self._ends, self.slow
        return twin

    def get_allowed(self) -> numpy.ndarray:
        """Return the allowed tokens, bool [V]. Raises as `fill` does."""
        mask = torch.zeros(self.vocabulary.words, dtype=torch.int32)
        self.fill(mask)
        bits = numpy.unpackbits(mask.numpy().view(numpy.uint8), bitorder="little")
        return bits[: self.vocabulary.vocab_size].astype(bool)

    # ---- for the library's subclass; EOS ids never get here

    @abstractmethod
    def _take_token(self, token: int) -> bool:
        """Do the work of `accept` for a token of text."""

    @abstractmethod
    def _roll_back(self, count: int) -> None:
        """Do the work of `rollback` for tokens of text."""

    @abstractmethod
    def _write_mask(self, mask: torch.Tensor) -> None:
        """Do the work of `fill`. The bits of EOS ids are overwritten."""

    @abstractmethod
    def _is_complete(self) -> bool:
        """Return True if the text so far is complete."""

    @abstractmethod
    def _only_end(self) -> bool:
        """Return True if the text must end here. Called only if the text is complete."""

    @abstractmethod
    def _copy_matcher(self) -> Self:
        """Return a copy, except for the counts."""
