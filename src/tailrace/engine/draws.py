"""The sampler's draws in a step: rows of logits and their unconditional ones, drafts to be verified, masks of grammars.

A sequence whose draw can't be assembled or begun fails alone: work that raises for a group is repeated for each member.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

import torch

from tailrace.engine.checks.structured_output import Late
from tailrace.engine.draft_tokens import NO_DRAFTS, Drafts, DraftTokens
from tailrace.engine.isolation import Isolated
from tailrace.engine.sequence import Failures, Phase, Sequence
from tailrace.grammar.base import BitmaskJob, Compiled, DraftMaskError
from tailrace.grammar.filling import BitmaskFilling, UnfinishedBitmasks
from tailrace.grammar.service import Grammars
from tailrace.kernels.rows import Guidance, Rows, spread
from tailrace.sampling import Sampler
from tailrace.sampling.sampler import Pending

log = logging.getLogger(__name__)

LATE_S = 0.02  # wall clock: the longest that a step waits for masks
OWNER_S = 0.001  # added to LATE_S for each request that needs masks


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws that the sampler makes in one call: the sequences and their rows."""

    sequences: list[Sequence]
    rows: Rows


Begun = list[tuple[list[Sequence], Pending]]


class SampleSkippedError(Exception):
    """A sample does not count, although its sequence is fine. The same token is drawn again in a later step."""


class Masks:
    """The tokens that the grammars of a step's rows allow.

    - jobs: masks to fill before the draws.
    - errors: by slot, of masks that could not be filled, or were not filled in time (SampleSkippedError).

    Args:
        grammars: fills the masks; None: no sequence has a grammar.
    """

    def __init__(self, vocab_size: int, grammars: Grammars | None = None) -> None:
        self._words, self._grammars = -(-vocab_size // 32), grammars
        self._filling: BitmaskFilling | None = None
        self.jobs: list[tuple[Sequence, BitmaskJob]] = []
        self.errors: dict[int, Exception] = {}

    def of(self, sequences: list[Sequence], drafts: list[DraftTokens]) -> tuple[list[int] | None, torch.Tensor | None]:
        """Return each row's index among the masks (−1: no mask) and the masks; None if no sequence has a grammar."""
        if not any(sequence.constraint is not None for sequence in sequences):
            return None, None
        constrained = [d for sequence, d in zip(sequences, drafts, strict=True) if sequence.constraint is not None]
        # No token is drawn after a draft that is not allowed, but its rows must exist.
        masks = torch.full((sum(draft.num_rows for draft in constrained), self._words), -1, dtype=torch.int32)
        places: list[int] = []
        at = 0
        for sequence, draft in zip(sequences, drafts, strict=True):
            if sequence.constraint is None:
                places += [-1] * draft.num_rows
                continue
            places += range(at, at + draft.num_rows)
            self._add_sequence(sequence, draft, masks[at : at + draft.num_rows])
            at += draft.num_rows
        return places, masks

    def _add_sequence(self, sequence: Sequence, draft: DraftTokens, masks: torch.Tensor) -> None:
        """Fill the sequence's masks, or add the job that does."""
        constraint = sequence.constraint
        assert constraint is not None
        constraint.known = sys.maxsize
        if constraint.waits:
            self.errors[sequence.slot] = SampleSkippedError()
        elif (late := constraint.late) is not None:
            constraint.late = None
            masks[0] = late.job.masks[0]
            self._finish_masks(sequence, masks, 1, late.filling.errors[late.place], late.filling.seconds[late.place])
        elif constraint.fillable:
            allowed = draft.tokens[: draft.num_allowed]
            job = BitmaskJob(constraint.matcher, allowed, masks[: len(allowed) + 1], sequence.request)
            self.jobs.append((sequence, job))
        elif constraint.bound:  # an opening marker has begun; only its next tokens are allowed
            masks[0] = 0
            constraint.complete_masks(masks, sequence.num_output)
        else:
            constraint.write_free(masks, draft.tokens, sequence.num_output)

    def start(self) -> None:
        """Start to fill the masks on other threads."""
        if self.jobs and self._grammars is not None:
            self._filling = self._grammars.fill([job for _, job in self.jobs])

    def wait(self) -> None:
        """Wait until the masks are filled, at most as long as a step may.

        Sequences whose mask is not ready skip this step's sample, and so do all others of that grammar.
        """
        if (filling := self._filling) is None:
            return
        filling.wait(LATE_S + OWNER_S * len({sequence.request for sequence, _ in self.jobs}))
        done = list(filling.done)
        by_grammar: dict[Compiled, list[int]] = {}
        for place, (sequence, _) in enumerate(self.jobs):
            assert sequence.constraint is not None
            by_grammar.setdefault(sequence.constraint.compiled, []).append(place)
        for compiled, places in by_grammar.items():
            late = not all(done[place] for place in places)
            compiled.busy = UnfinishedBitmasks(filling, places) if late else None
            for place in places:
                sequence, job = self.jobs[place]
                assert sequence.constraint is not None
                if late:
                    sequence.constraint.late = Late(filling, place, job)
                    self.errors[sequence.slot] = SampleSkippedError()
                    continue
                error = filling.errors[place]
                known = error.known if isinstance(error, DraftMaskError) else len(job.masks)
                self._finish_masks(sequence, job.masks, known, error, filling.seconds[place])

    def _finish_masks(
        self, sequence: Sequence, masks: torch.Tensor, known: int, error: Exception | None, took_s: float
    ) -> None:
        """Complete masks that are filled; only the first `known` count.

        Tokens that end the output or open a thinking span are allowed as well. If filling failed, everything is allowed
        and the row's sample is discarded. So are samples after drafts that were given up (StructuredOutput.known).
        """
        assert sequence.constraint is not None
        sequence.constraint.known, sequence.constraint.mask_s = known, took_s / known
        masks[known:] = -1
        if error is not None and not isinstance(error, DraftMaskError):
            self.errors[sequence.slot] = error
            masks.fill_(-1)
        else:
            sequence.constraint.complete_masks(masks[:known], sequence.num_output)


def wait_for_late_mask(running: list[Sequence], within_s: float) -> None:
    """If all sequences wait for a mask, wait a little for the first one's."""
    first = running[0].constraint if running and all(sequence.waits_for_mask for sequence in running) else None
    if first is not None and first.compiled.busy is not None:
        first.compiled.busy.filling.wait(within_s)


def group_by_guidance(sampling: list[Sequence]) -> list[list[Sequence]]:
    """Return groups of sequences that the sampler serves in one call each.

    Guided sequences form a group of their own: on a GPU their logits become float32, which would slow down the others.
    """
    if not any(sequence.unconditional is not None for sequence in sampling):
        return [sampling] if sampling else []
    groups: dict[bool, list[Sequence]] = {}
    for sequence in sampling:
        groups.setdefault(sequence.unconditional is not None, []).append(sequence)
    return list(groups.values())


def build_draws(
    sampling: list[Sequence], drafts: Drafts, first: dict[int, int], masks: Masks
) -> tuple[list[Draws], Failures]:
    """Return the draws of a step, and the sequences whose draw can't be assembled.

    Args:
        drafts: drafts that prevent a draw are removed.
        first: slot → the first of its rows of the step's logits.
        masks: of the grammars, empty. The jobs that must be done before the draws are added.
    """
    built: list[Draws] = []
    failures: Failures = []
    for group in group_by_guidance(sampling):
        known = len(masks.jobs)
        try:
            built.append(draws_of(group, drafts, first, masks))
        except Exception:
            log.exception("draws could not be put together; drafts that are at fault are dropped")
            del masks.jobs[known:]
            for sequence in group:
                if not fails_with_its_leader(sequence, failures):
                    _build_alone(sequence, drafts, first, masks, (built, failures))
    return built, failures


def _build_alone(
    sequence: Sequence, drafts: Drafts, first: dict[int, int], masks: Masks, found: tuple[list[Draws], Failures]
) -> None:
    """Build one sequence's draw. Leave out its drafts if they cause an error."""
    built, failures = found
    known = len(masks.jobs)
    try:
        built.append(draws_of([sequence], drafts, first, masks))
        return
    except Exception:
        del masks.jobs[known:]
        drafts.pop(sequence.slot, None)
    with Isolated("the draw could not be put together", sequence.request.id) as attempt:
        built.append(draws_of([sequence], drafts, first, masks))
    if attempt.error is not None:
        del masks.jobs[known:]
        failures.append((sequence, attempt.error))


def begin_draws(sampler: Sampler, draws: list[Draws], logits: torch.Tensor) -> tuple[Begun, Failures]:
    """Begin the draws. Also return the sequences whose own draw can't be begun."""
    begun: Begun = []
    failures: Failures = []
    for part in draws:
        try:
            begun.append((part.sequences, sampler.begin(logits, part.rows)))
            continue
        except Exception:
            if len(part.sequences) > 1:
                log.exception("the draws of %d sequences failed; each is tried alone", len(part.sequences))
        for place, sequence in enumerate(part.sequences):
            if fails_with_its_leader(sequence, failures):
                continue
            with Isolated("the token could not be drawn", sequence.request.id) as attempt:
                begun.append(([sequence], sampler.begin(logits, part.rows.of(place))))
            if attempt.error is not None:
                failures.append((sequence, attempt.error))
    return begun, failures


def fails_with_its_leader(sequence: Sequence, failures: Failures) -> bool:
    """Return whether the sequence is a fork that waits for the prefill of a sequence that fails."""
    return sequence.phase is Phase.FORK and any(failed is sequence.request.sequences[0] for failed, _ in failures)


def draws_of(sequences: list[Sequence], drafts: Drafts, first: dict[int, int], masks: Masks) -> Draws:
    """Return the draws of one group.

    Forks that wait for a prefill have no rows of their own. They share those of their request's first sequence.
    """
    of = [drafts.get(s.slot, NO_DRAFTS) for s in sequences] if drafts else [NO_DRAFTS] * len(sequences)
    source = [first[s.slot if s.slot in first else s.request.sequences[0].slot] for s in sequences]
    guidance = None
    if sequences[0].unconditional is not None:
        computed = [s if s.slot in first else s.request.sequences[0] for s in sequences]
        counts = [draft.num_rows for draft in of]
        others = spread([first[s.unconditional.slot] for s in computed if s.unconditional is not None], counts)
        scales = torch.tensor([s.request.params.guidance_scale for s in sequences])
        guidance = Guidance(others, scales.repeat_interleave(torch.tensor(counts)))
    place, filled = masks.of(sequences, of)
    slots, positions = [s.slot for s in sequences], [len(s.tokens) for s in sequences]
    if not drafts or not any(draft.tokens for draft in of):
        return Draws(sequences, Rows.plain(slots, source, positions, mask=place, masks=filled, guidance=guidance))
    rows = Rows.drafted(
        slots,
        positions,
        [draft.tokens for draft in of],
        [draft.rule for draft in of],
        collect_proposals(of),
        source=source,
        mask=place,
        masks=filled,
        guidance=guidance,
        trusted=True,  # drafters make them by softmax
    )
    return Draws(sequences, rows)


def collect_proposals(drafts: list[DraftTokens]) -> list[torch.Tensor | None] | None:
    """Return the distributions that the tokens were drawn from, or None if all are one-hot."""
    return [draft.q for draft in drafts] if any(draft.q is not None for draft in drafts) else None
