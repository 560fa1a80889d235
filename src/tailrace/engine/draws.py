"""What the sampler draws in a step: rows of logits and their companions, guesses to be verified, masks of grammars."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from tailrace.engine.checks.structured_output import Late
from tailrace.engine.sequence import Sequence
from tailrace.grammar.base import BitmaskJob, Compiled, DraftMaskError
from tailrace.grammar.filling import BitmaskFilling, UnfinishedBitmasks
from tailrace.kernels.rows import Guidance, Rows, spread
from tailrace.options import Rule

LATE_S = 0.02  # wall clock: that a step waits for masks
OWNER_S = 0.001  # that it waits longer for each request that wants some


@dataclass(frozen=True, slots=True)
class Guess:
    """What a sequence may say next, to be verified.

    q: float32 [len(tokens), V], the distributions the tokens were drawn from; None: they are one-hot. lawful: how many of the tokens its
    grammar allows, from the first on. certain: nobody's skill is measured by it.
    """

    tokens: list[int]
    q: torch.Tensor | None = None
    rule: Rule = "exact"
    lawful: int = 0
    certain: bool = False

    @property
    def rows(self) -> int:
        """Of logits that it takes to verify them, the bonus token's included."""
        return len(self.tokens) + 1


NOTHING = Guess([])
Guesses = dict[int, Guess]  # by the slot of the sequence


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws that the sampler makes in one call: whose they are, and its rows."""

    sequences: list[Sequence]
    rows: Rows


class SitsOutError(Exception):
    """What was drawn for a sequence does not count, and nothing is wrong with it: the same is drawn again in a later step."""


class Masks:
    """Which tokens the grammars of a step's rows allow.

    jobs: what is to be filled before the draws. errors: of those that could not be, or are not in time (SitsOutError), by slot.
    """

    def __init__(self, vocab_size: int, enders: Iterable[int]) -> None:
        self._words, self._enders = -(-vocab_size // 32), enders
        self.jobs: list[tuple[Sequence, BitmaskJob]] = []
        self.errors: dict[int, Exception] = {}

    def of(self, sequences: list[Sequence], guesses: list[Guess]) -> tuple[list[int] | None, torch.Tensor | None]:
        """Each row's place among the masks (−1: none) and the masks; None where no grammar rules."""
        ruled = [guess for sequence, guess in zip(sequences, guesses, strict=True) if sequence.constraint is not None]
        if not ruled:
            return None, None
        # after a guess that is not allowed nothing is drawn; its rows must be there all the same
        masks = torch.full((sum(guess.rows for guess in ruled), self._words), -1, dtype=torch.int32)
        places: list[int] = []
        at = 0
        for sequence, guess in zip(sequences, guesses, strict=True):
            if sequence.constraint is None:
                places += [-1] * guess.rows
                continue
            sequence.constraint.known = sys.maxsize
            mine = masks[at : at + guess.rows]
            places += range(at, at + guess.rows)
            at += guess.rows
            if sequence.constraint.waits:
                self.errors[sequence.slot] = SitsOutError()
            elif (late := sequence.constraint.late) is not None:
                sequence.constraint.late = None
                mine[0] = late.job.masks[0]
                self._settle(sequence, mine, 1, late.filling.errors[late.place], late.filling.seconds[late.place])
            elif sequence.constraint.bound:
                lawful = guess.tokens[: guess.lawful]
                job = BitmaskJob(sequence.constraint.matcher, lawful, mine[: len(lawful) + 1], sequence.request)
                self.jobs.append((sequence, job))
            else:  # it may not end before what it is to say has begun
                for token in self._enders:
                    mine.numpy().view(np.uint32)[:, token // 32] &= ~np.uint32(1 << token % 32)
        return places, masks

    def filled(self, filling: BitmaskFilling) -> None:
        """They are, or as far as the step waits for them: who is late, and whoever shares its grammar, sits out."""
        filling.wait(LATE_S + OWNER_S * len({sequence.request for sequence, _ in self.jobs}))
        done = list(filling.done)
        unfinished: dict[Compiled, list[int]] = {}
        for place, (sequence, _) in enumerate(self.jobs):
            assert sequence.constraint is not None
            unfinished.setdefault(sequence.constraint.compiled, []).append(place)
        for compiled, places in unfinished.items():
            late = not all(done[place] for place in places)
            compiled.busy = UnfinishedBitmasks(filling, places) if late else None
            for place in places:
                sequence, job = self.jobs[place]
                assert sequence.constraint is not None
                if late:
                    sequence.constraint.late = Late(filling, place, job)
                    self.errors[sequence.slot] = SitsOutError()
                    continue
                error = filling.errors[place]
                known = error.known if isinstance(error, DraftMaskError) else len(job.masks)
                self._settle(sequence, job.masks, known, error, filling.seconds[place])

    def _settle(
        self, sequence: Sequence, masks: torch.Tensor, known: int, error: Exception | None, took_s: float
    ) -> None:
        """A job is over, whose first masks are known. What opens a stretch that the grammar does not know is let through; where filling
        failed everything is, in vain, and of what is drawn behind guesses that were given up nothing counts (StructuredOutput.known)."""
        assert sequence.constraint is not None
        sequence.constraint.known, sequence.constraint.mask_s = known, took_s / known
        masks[known:] = -1
        if error is not None and not isinstance(error, DraftMaskError):
            self.errors[sequence.slot] = error
            masks.fill_(-1)
        elif (token := sequence.constraint.opening) is not None:
            masks[0].numpy().view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


def wait_where_all_do(running: list[Sequence], within_s: float) -> None:
    """Where nobody can go on before a mask is there: a little, for the first one's."""
    first = running[0].constraint if running and all(sequence.waits for sequence in running) else None
    if first is not None and first.compiled.busy is not None:
        first.compiled.busy.filling.wait(within_s)


def grouped(drawing: list[Sequence]) -> list[list[Sequence]]:
    """Those that the sampler serves in one call: on a GPU guided ones get logits of their own, float32, which nobody else should."""
    groups: dict[bool, list[Sequence]] = {}
    for sequence in drawing:
        groups.setdefault(sequence.companion is not None, []).append(sequence)
    return list(groups.values())


def draw(sequences: list[Sequence], guesses: Guesses, first: dict[int, int], masks: Masks) -> Draws:
    """The draws of one group. first: slot → the first of its rows of the step's logits; those that wait for a prefill have none, and share
    that of their request's first sequence."""
    of = [guesses.get(sequence.slot, NOTHING) for sequence in sequences]
    computed = [s if s.slot in first else s.request.sequences[0] for s in sequences]
    source = [first[sequence.slot] for sequence in computed]
    guidance = None
    if sequences[0].companion is not None:
        counts = [guess.rows for guess in of]
        companions = spread([first[s.companion.slot] for s in computed if s.companion is not None], counts)
        scales = torch.tensor([s.request.params.guidance_scale for s in sequences])
        guidance = Guidance(companions, scales.repeat_interleave(torch.tensor(counts)))
    place, filled = masks.of(sequences, of)
    slots, positions = [s.slot for s in sequences], [len(s.tokens) for s in sequences]
    if not any(guess.tokens for guess in of):
        return Draws(sequences, Rows.plain(slots, source, positions, mask=place, masks=filled, guidance=guidance))
    rows = Rows.drafted(
        slots,
        positions,
        [guess.tokens for guess in of],
        [guess.rule for guess in of],
        proposals(of),
        source=source,
        mask=place,
        masks=filled,
        guidance=guidance,
        trusted=True,  # drafters make them by softmax
    )
    return Draws(sequences, rows)


def proposals(guesses: list[Guess]) -> list[torch.Tensor | None] | None:
    """What each one's tokens were drawn from; None where all are one-hot."""
    return [guess.q for guess in guesses] if any(guess.q is not None for guess in guesses) else None
