"""A step on its way, when steps overlap (ahead.py): its forward pass launched, its draws prepared, its draws begun."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from tailrace.engine.batch import Assembled
from tailrace.engine.draws import Draws, Guesses, Masks
from tailrace.engine.request import Sequence
from tailrace.engine.schedule import Work
from tailrace.grammar.service import Filling
from tailrace.sampling.sampler import Pending


@dataclass(frozen=True, slots=True)
class Prepared:
    """Draws that can begin as soon as there are logits and `filling` is over."""

    draws: list[Draws]
    masks: Masks
    filling: Filling | None


@dataclass(slots=True)
class Flight:
    """A step whose forward pass has been launched.

    ends: of everybody in it, the length of the text that its place in the step is right for. prepared: when the tokens of the step before
    are known.
    """

    work: Work
    guesses: Guesses
    assembled: Assembled
    logits: Future[torch.Tensor]
    ends: dict[Sequence, int]
    prepared: Prepared | None = None

    def stands(self, sequence: Sequence) -> bool:
        """It is still there, and has said what was assumed. By its length: between launch and landing it commits one token at most."""
        return sequence.slot >= 0 and len(sequence.tokens) >= self.ends[sequence]


@dataclass(slots=True)
class Drawn:
    """A step whose draws are on their way to the host. errors: see commit. referred: sequences whose last token is a reference to one of
    the draws."""

    flight: Flight
    pending: list[tuple[list[Sequence], Pending]]
    errors: dict[int, Exception]
    referred: list[Sequence] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """Who draws, in the order of the draws."""
        return [sequence for sequences, _ in self.pending for sequence in sequences]

    @property
    def guessed(self) -> bool:
        """It verifies guesses: how many of them stand decides where everybody is."""
        return bool(self.flight.guesses)

    def refer(self) -> None:
        """From here on each has one token more, which is not known."""
        for place, sequence in enumerate(self.sequences):
            for member in sequence.members:
                member.tokens.append(-1 - place)
        self.referred = self.sequences

    def known(self) -> None:
        """References are done with."""
        for sequence in self.referred:
            for member in sequence.members:
                member.tokens.pop()
        self.referred = []

    def tokens(self) -> torch.Tensor | None:
        """What was drawn, where the next step finds it: int64 [P]. None where nothing was."""
        columns = [pending.token_ids[:, 0] for _, pending in self.pending]
        return torch.cat(columns) if len(columns) > 1 else next(iter(columns), None)
