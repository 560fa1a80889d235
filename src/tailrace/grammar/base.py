"""The interface of a grammar matcher: the state of a sequence in its grammar, and the tokens that may come next. It
knows nothing of requests or logits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from tailrace.grammar.filling import UnfinishedBitmasks


@runtime_checkable
class Matcher(Protocol):
    """One sequence's state in its grammar. Not for use by two threads at once. slow: its masks take long, so they are
    filled alone, where the time is measured."""

    slow: bool

    def accept(self, token: int) -> bool:
        """Add a token. False: the grammar does not allow it, and nothing has changed. After the end only EOS is
        allowed. It may come any number of times and changes nothing."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens, also those that completed the grammar."""
        ...

    def fill(self, mask: torch.Tensor) -> None:
        """Write which tokens may come next.

        mask: int32 [⌈V / 32⌉], bit i of word i // 32 for token i; bits from V on are 0. EOS ids are allowed if the text
        so far is complete. Never all zero.
        """
        ...

    def prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens, from the first on, could be accepted one after the other. Nothing changes."""
        ...

    def forced(self, count: int, within_s: float) -> list[int]:
        """Return tokens that must come next, as the tokenizer would cut their text; [] if there is a choice.

        This is a guess, since other tokens may spell the same text. At most `count` tokens are found, within `within_s`
        of processor time.
        """
        ...

    def completion(self, budget: int, max_masks: int) -> Generator[None, None, list[int] | None]:
        """Search for at most `budget` tokens that complete the text. A generator, which yields between steps; see
        grammar/completion.py."""
        ...

    @property
    def complete(self) -> bool:
        """True if the text so far is complete."""
        ...

    @property
    def finished(self) -> bool:
        """True if only the end may follow."""
        ...

    def fork(self) -> Matcher:
        """Return an independent copy."""
        ...


@dataclass(frozen=True, slots=True)
class BitmaskJob:
    """The masks of one sequence.

    masks: int32 [len(drafts) + 1, ⌈V / 32⌉], contiguous, on the CPU. Row j says what may come after the first j drafts,
    all of which the grammar must accept (Matcher.prefix). owner: whoever has several jobs; None: this is its only one.
    """

    matcher: Matcher
    drafts: Sequence[int]
    masks: torch.Tensor
    owner: object = None


def not_taken(place: int, token: int) -> ValueError:
    """Return the error for a draft that the grammar does not accept."""
    return ValueError(f"draft {place} (token {token}) is not one that the grammar allows")


class DraftMaskError(Exception):
    """The masks after some drafts could not be filled within the job's limits. The sequence itself is fine: these masks
    are filled again once its tokens get there. known: number of masks that are filled, from the first on; at least 1.
    """

    def __init__(self, known: int) -> None:
        super().__init__(f"{known} masks")
        self.known = known


class Batched(Matcher, Protocol):
    """A matcher whose library fills the masks of many matchers in one call."""

    def can_batch(self, drafts: Sequence[int]) -> bool:
        """Return True if a job with these drafts may be filled with others."""
        ...

    @staticmethod
    def fill_together(jobs: Sequence[BitmaskJob], threads: int) -> list[Exception | None]:
        """Fill the masks of all these jobs, whose matchers are of this class. Returns per job the error that
        `bitmasks.fill` would have raised."""
        ...


@runtime_checkable
class Compiled(Protocol):
    """A compiled grammar, shared by all sequences that use it. busy: masks that a step did not wait for."""

    busy: UnfinishedBitmasks | None

    def matcher(self) -> Matcher:
        """Return a matcher at the start of the grammar."""
        ...
