"""What all matchers have in common: the end, its EOS ids, and going back. The library's own adds how text is matched.

The library never sees an EOS id, so several of them, and any number after the end, mean the same everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Self

import numpy
import torch

from tailrace.errors import DeadEndError
from tailrace.grammar.completion import searching
from tailrace.grammar.jump_forward import ahead
from tailrace.grammar.vocabulary import Vocabulary

NO_TOKEN = "the grammar has no continuation here that the vocabulary can spell"


class GrammarMatcher(ABC):
    """grammar/base.py's Matcher; its methods' contracts are there."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.apart = False
        self._taken = 0  # tokens of text
        self._ends = 0  # EOS ids after them
        self._eos = frozenset(vocabulary.eos)

    def accept(self, token: int) -> bool:
        if token in self._eos:
            if not self._ends and not self._complete():
                return False
            self._ends += 1
            return True
        if self._ends or not 0 <= token < self.vocabulary.vocab_size or not self._take(token):
            return False
        self._taken += 1
        return True

    def rollback(self, count: int) -> None:
        """Raises ValueError: more than were accepted."""
        if not 0 <= count <= self._taken + self._ends:
            raise ValueError(f"count must be in [0, {self._taken + self._ends}], got {count}")
        ends = min(count, self._ends)
        self._ends -= ends
        if count > ends:
            self._back(count - ends)
            self._taken -= count - ends

    def fill(self, mask: torch.Tensor) -> None:
        """Raises DeadEndError: nothing may come next; GrammarLimitError: a step's limit was met."""
        words = mask.numpy()
        complete = self.complete
        if self._ends:
            words.fill(0)
        else:
            self._write(mask)
        bits = words.view(numpy.uint32)
        for token in self.vocabulary.eos:
            bit = numpy.uint32(1 << (token % 32))
            bits[token // 32] = bits[token // 32] | bit if complete else bits[token // 32] & ~bit
        if not words.any():
            raise DeadEndError(NO_TOKEN)

    def prefix(self, tokens: Sequence[int]) -> int:
        if not len(tokens):
            return 0  # asked at every step of a sequence without drafts: a fork costs more than all else
        walker = self.fork()
        return next((i for i, token in enumerate(tokens) if not walker.accept(token)), len(tokens))

    def forced(self, count: int, within_s: float) -> list[int]:
        text, goes_on = ahead(self, count, within_s)
        tokens, kept = self.vocabulary.cut(text) if text else ([], 0)
        if not tokens:
            return []
        kept = kept or (
            len(tokens) - 1 if goes_on else 0
        )  # in the middle of a long word: the last token may be a longer one
        walker = self.fork()
        taken = next((i for i, token in enumerate(tokens) if not walker.accept(token)), len(tokens))
        whole = taken == len(tokens) and walker.finished
        return tokens[: min(count, taken if whole else min(taken, kept))]

    def closing(self, budget: int, max_masks: int) -> Generator[None, None, list[int] | None]:
        return searching(self, budget, max_masks)

    def takes(self, token: int) -> bool:
        """Whether this one could be accepted."""
        return bool(self.prefix((token,)))

    @property
    def ended(self) -> bool:
        """An EOS id was accepted."""
        return bool(self._ends)

    @property
    def complete(self) -> bool:
        """The text so far is a word of the grammar."""
        return bool(self._ends) or self._complete()

    @property
    def finished(self) -> bool:
        return bool(self._ends) or (self._complete() and self._only_end())

    def fork(self) -> Self:
        twin = self._twin()
        twin._taken, twin._ends, twin.apart = self._taken, self._ends, self.apart
        return twin

    def allowed(self) -> numpy.ndarray:
        """bool [V]: fill, unpacked. Raises as fill does."""
        mask = torch.zeros(self.vocabulary.words, dtype=torch.int32)
        self.fill(mask)
        bits = numpy.unpackbits(mask.numpy().view(numpy.uint8), bitorder="little")
        return bits[: self.vocabulary.vocab_size].astype(bool)

    # ---- what the library does; EOS ids never get here

    @abstractmethod
    def _take(self, token: int) -> bool:
        """accept, for text."""

    @abstractmethod
    def _back(self, count: int) -> None:
        """rollback, of text."""

    @abstractmethod
    def _write(self, mask: torch.Tensor) -> None:
        """fill; what it says of EOS ids does not matter."""

    @abstractmethod
    def _complete(self) -> bool:
        """Is the text so far a word of the grammar?"""

    @abstractmethod
    def _only_end(self) -> bool:
        """Can no more text follow? Asked only where the text is complete."""

    @abstractmethod
    def _twin(self) -> Self:
        """A copy, but for the counts."""
