"""Where a sequence stands in its grammar, and which tokens may come next: what a matcher must do. Knows nothing of requests or logits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from tailrace.grammar.bitmasks import Unfinished


@runtime_checkable
class Matcher(Protocol):
    """One sequence's place. Not for use by two threads at once. apart: its masks take long, and are filled where that is measured."""

    apart: bool

    def accept(self, token: int) -> bool:
        """One more token. False: the grammar does not allow it, and nothing has changed. After the end only EOS is allowed, any number
        of times, and changes nothing."""
        ...

    def rollback(self, count: int) -> None:
        """Take the last `count` accepted tokens back, also those that completed the grammar."""
        ...

    def fill(self, mask: torch.Tensor) -> None:
        """Write which tokens may come next. mask: int32 [⌈V / 32⌉], bit i of word i // 32 for token i; bits from V on are 0. EOS ids are
        allowed where the text so far is a word of the grammar. Never all zero."""
        ...

    def prefix(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first on, could be accepted one after the other. Nothing changes."""
        ...

    def forced(self, count: int, within_s: float) -> list[int]:
        """Tokens that spell what must come next in any case, as the tokenizer would cut it; [] where there is a choice. A guess: other
        tokens may spell the same. At most `count`, and what is found within so much processor time, however much is forced."""
        ...

    def closing(self, budget: int, max_masks: int) -> Generator[None, None, list[int] | None]:
        """Tokens, at most `budget`, after which the text is complete, looked for a place at a time; see grammar/completion.py."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing but the end may follow."""
        ...

    def fork(self) -> Matcher:
        """An independent copy."""
        ...


@dataclass(frozen=True, slots=True)
class BitmaskJob:
    """One sequence's rows. masks: int32 [len(drafts) + 1, ⌈V / 32⌉], contiguous, on the CPU; row j says what may come after the first j
    drafts, all of which the grammar takes (Matcher.prefix). owner: whoever has several jobs; None: has only this one."""

    matcher: Matcher
    drafts: Sequence[int]
    masks: torch.Tensor
    owner: object = None


def not_taken(place: int, token: int) -> ValueError:
    """A job's draft that should not be there."""
    return ValueError(f"draft {place} (token {token}) is not one that the grammar allows")


class GuessError(Exception):
    """The masks behind some of a job's drafts were not to be had within its limits. Nothing is wrong with the sequence: what may come
    there is asked again when it has come there. known: the masks that are filled, from the first on; at least 1."""

    def __init__(self, known: int) -> None:
        super().__init__(f"{known} masks")
        self.known = known


class Batched(Matcher, Protocol):
    """A matcher whose library fills the masks of many in one call."""

    def joins(self, drafts: Sequence[int]) -> bool:
        """Whether a job with these drafts may be filled so."""
        ...

    @staticmethod
    def fill_together(jobs: Sequence[BitmaskJob], threads: int) -> list[Exception | None]:
        """All of these, whose matchers are of this class; what `filling.fill` would have raised for each."""
        ...


@runtime_checkable
class Compiled(Protocol):
    """A grammar ready for use, shared by all sequences that ask for it. busy: masks that a step did not wait for."""

    busy: Unfinished | None

    def matcher(self) -> Matcher:
        """At its beginning."""
        ...
