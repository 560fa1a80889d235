"""A step on its way, when steps overlap (ahead.py): its forward pass launched, its draws prepared, its draws begun."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from tailrace.drafting.adaptive import Stride
from tailrace.engine.batch import Assembled
from tailrace.engine.draws import NOTHING, Draws, Guesses, Masks
from tailrace.engine.outputs import Said
from tailrace.engine.scheduler import Work
from tailrace.engine.sequence import Sequence
from tailrace.grammar.service import BitmaskFilling
from tailrace.sampling.sampler import Pending


@dataclass(frozen=True, slots=True)
class Prepared:
    """Draws that can begin as soon as there are logits and `filling` is over."""

    draws: list[Draws]
    masks: Masks
    filling: BitmaskFilling | None


@dataclass(slots=True)
class Flight:
    """A step whose forward pass has been launched.

    ends: of everybody in it, the length of the text that its place in the step is right for. stride: what is told how long it took, if
    it has no prefills; since: of time.perf_counter, from when on it is taken to run. prepared: when the tokens of the step before are
    known.
    """

    work: Work
    guesses: Guesses
    assembled: Assembled
    logits: Future[torch.Tensor]
    ends: dict[Sequence, int]
    stride: Stride | None
    since: float
    prepared: Prepared | None = None

    def stands(self, sequence: Sequence) -> bool:
        """It is in the step, still there, and has said what was assumed. By its length: between launch and landing it commits what was
        assumed, or less."""
        return sequence.slot >= 0 and len(sequence.tokens) >= self.ends.get(sequence, sys.maxsize)


@dataclass(slots=True)
class Drawn:
    """A step whose draws are on their way to the host. errors: see commit. said: what has arrived and is not committed; at: when, by
    time.perf_counter. assumed: whose last tokens are not committed, and how many those are."""

    flight: Flight
    pending: list[tuple[list[Sequence], Pending]]
    errors: dict[int, Exception]
    said: list[Said] | None = None
    at: float = 0.0
    assumed: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """Who draws, in the order of the draws."""
        return [sequence for sequences, _ in self.pending for sequence in sequences]

    def refer(self) -> None:
        """From here on each has one token more, which is not known; before it all that was guessed stands, but what would end it."""
        for place, sequence in enumerate(self.sequences):
            guess = self.flight.guesses.get(sequence.slot, NOTHING)
            self._assume(sequence, [*guess.tokens[: max(0, sequence.room - 2)], -1 - place])

    def foretell(self) -> None:
        """From here on each has said what has arrived, the guesses that stood have been computed, and nothing else sees it yet."""
        for one in self.said or ():
            self._assume(one.sequence, one.tokens)

    def _assume(self, sequence: Sequence, tokens: list[int]) -> None:
        for member in sequence.members:
            member.tokens += tokens
            member.computed += len(tokens) - 1
        self.assumed.append((sequence, len(tokens)))

    def known(self) -> None:
        """Assumptions are done with."""
        for sequence, count in self.assumed:
            for member in sequence.members:
                del member.tokens[-count:]
                member.computed -= count - 1
        self.assumed = []

    def tokens(self) -> torch.Tensor | None:
        """What was drawn, where the next step finds it: int64 [P]. None where nothing was, or all of it is known."""
        if self.said is not None:
            return None
        columns = [pending.token_ids[:, 0] for _, pending in self.pending]
        return torch.cat(columns) if len(columns) > 1 else next(iter(columns), None)
