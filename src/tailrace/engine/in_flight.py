"""The data of a step in progress: its forward pass launched, its draws prepared, its draws launched.

A sampled token that the host does not know yet is stored in `Sequence.tokens` as a reference: −1 − i is sample i of the
previous step (see runners.base.Batch). So the scheduler, the block cache and the batch count it like any other token.
References are assumptions. No assumption outlives the call in which it was made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import torch

from tailrace.base.logprobs import TokenLogprobs
from tailrace.drafting.base import Drafter
from tailrace.drafting.draft_history import StepCost
from tailrace.engine.batch import Assembled
from tailrace.engine.draft_tokens import NO_DRAFTS, Drafts, DraftTokens
from tailrace.engine.draws import Begun, Draws, Masks
from tailrace.engine.explanations import Kept, KeptRows
from tailrace.engine.plan import Work
from tailrace.engine.sequence import Phase, Sequence
from tailrace.engine.speculation import Speculator
from tailrace.kernels.status import OK
from tailrace.sampling import Sampled, Slots


class Drafted(NamedTuple):
    """A step's drafts. took_s: seconds that drafting took. asked: the drafter may have been asked for some."""

    drafts: Drafts
    took_s: float
    asked: bool


@dataclass(frozen=True, slots=True)
class PreparedDraws:
    """Draws that can begin once there are logits and the masks are filled."""

    draws: list[Draws]
    masks: Masks


@dataclass(slots=True)
class InFlightStep:
    """A step whose forward pass has been launched.

    - lengths: of each sequence in it, the number of tokens that the step was planned on.
    - record: of the step, if it has no prefills.
    - since: time.perf_counter at which the pass is taken to have begun.
    - prepared: its draws, once the tokens of the step before are known.
    """

    work: Work
    drafts: Drafts
    assembled: Assembled
    logits: Future[torch.Tensor]
    lengths: dict[Sequence, int]
    record: StepCost | None
    since: float
    prepared: PreparedDraws | None = None

    def is_valid(self, sequence: Sequence) -> bool:
        """Return True if the sequence still has its slot and all tokens that this step was planned on.

        Comparing lengths is enough: between launch and landing a sequence gets the tokens that were assumed, or fewer.
        """
        return sequence.slot >= 0 and len(sequence.tokens) >= self.lengths.get(sequence, sys.maxsize)

    def select_valid(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Return those of the step's sequences that are valid."""
        lengths = self.lengths
        return [s for s in sequences if s.slot >= 0 and len(s.tokens) >= lengths[s]]

    def are_valid(self, sequences: list[Sequence]) -> bool:
        """Return True if all of these sequences of the step are valid."""
        return len(self.select_valid(sequences)) == len(sequences)

    def select_valid_work(self) -> Work:
        """Return the work of the valid sequences."""
        lengths = self.lengths
        return [entry for entry in self.work if entry[0].slot >= 0 and len(entry[0].tokens) >= lengths[entry[0]]]


@dataclass(slots=True)
class SampledTokens:
    """The samples of one sequence.

    - tokens: those that verification kept; the first `accepted` of them are drafts.
    - status: kernels/status.py.
    - error: the error of its grammar, if there is one; then the tokens do not count.
    - kept: the rows that the tokens were drawn from, if the request asks for explanations.
    - survivors: of each token, if the request asks for them.
    """

    sequence: Sequence
    draft: DraftTokens
    tokens: list[int]
    accepted: int
    status: int
    logprobs: list[TokenLogprobs] | None
    error: Exception | None
    kept: KeptRows | None = None
    survivors: list[bytes] | None = None

    def must_be_processed_first(self, slots: Slots, drafter: Drafter | None) -> bool:
        """Return whether the next step depends on more than the sampled tokens.

        It does if the sequence may end or fail with them, or if its grammar, or the sampler that draws its drafts, must
        see these tokens first.
        """
        sequence, slot = self.sequence, slots[self.sequence.slot]
        if drafter is not None and drafter.draws and (slot.history is not None or slot.moves or slot.state):
            return True
        if self.status != OK or sequence.constraint is not None or sequence.tokens_left <= len(self.tokens):
            return True
        return not sequence.request.enders.isdisjoint(self.tokens)


@dataclass(slots=True)
class LaunchedDraws:
    """A step whose samples are on their way to the host.

    - errors: by slot, of masks.
    - kept: rows of the sequences that ask for explanations.
    - samples: those that have arrived and are not processed yet. arrived_s: time.perf_counter of their arrival.
    - assumed: the sequences that hold assumed tokens, and how many.
    """

    step: InFlightStep
    pending: Begun
    errors: dict[int, Exception]
    kept: Kept = field(default_factory=dict)
    samples: list[SampledTokens] | None = None
    arrived_s: float = 0.0
    assumed: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that sample, in the order of the draws."""
        return [sequence for sequences, _ in self.pending for sequence in sequences]

    def assume_accepted(self) -> None:
        """Give each sequence one more token, a reference. All drafts are assumed to be accepted, except those that
        would end the sequence."""
        for place, sequence in enumerate(self.sequences):
            draft = self.step.drafts.get(sequence.slot, NO_DRAFTS)
            self._assume_tokens(sequence, [*draft.tokens[: max(0, sequence.tokens_left - 2)], -1 - place])

    def assume_samples(self) -> None:
        """Give each sequence the tokens that have arrived, and count the accepted drafts as computed. Nothing else is
        changed."""
        for one in self.samples or ():
            self._assume_tokens(one.sequence, one.tokens)

    def _assume_tokens(self, sequence: Sequence, tokens: list[int]) -> None:
        for member in sequence.pair:
            member.tokens += tokens
            member.num_computed += len(tokens) - 1
        self.assumed.append((sequence, len(tokens)))

    def undo_assumptions(self) -> None:
        """Restore the tokens that the sequences had before."""
        for sequence, count in self.assumed:
            for member in sequence.pair:
                del member.tokens[-count:]
                member.num_computed -= count - 1
        self.assumed = []

    def join_samples(self) -> torch.Tensor | None:
        """Return the samples as the next step reads them: int64 [P]. None if the step has no samples, or the host knows
        them."""
        if self.samples is not None:
            return None
        columns = [pending.token_ids[:, 0] for _, pending in self.pending]
        return torch.cat(columns) if len(columns) > 1 else next(iter(columns), None)


def read_samples(
    launched: LaunchedDraws,
    sampled: list[tuple[list[Sequence], Sampled]],
    speculator: Speculator,
    most_survivors: int,
) -> list[SampledTokens]:
    """Return the samples of each sequence, and report the number of accepted drafts to the speculator. A token with
    more than `most_survivors` survivors reports none of them."""
    found: list[SampledTokens] = []
    drafts, errors, kept = launched.step.drafts, launched.errors, launched.kept
    for sequences, samples in sampled:
        columns = (samples.num_tokens.tolist(), samples.status.tolist(), samples.token_ids.tolist(), samples.logprobs)
        packed = None if samples.sampling_mask is None else samples.sampling_mask.packed(most_survivors)
        width = samples.token_ids.shape[1]
        ordinary = not (drafts or errors or kept or packed)
        for place, (sequence, count, status, row, logprobs) in enumerate(zip(sequences, *columns, strict=True)):
            if sequence.phase is not Phase.RUNNING:
                continue
            if ordinary:
                found.append(SampledTokens(sequence, NO_DRAFTS, row[:count], 0, status, logprobs, None))
                continue
            error, draft, accepted = errors.get(sequence.slot), drafts.get(sequence.slot, NO_DRAFTS), 0
            if draft.tokens and status == OK and error is None:
                pairs = zip(row, draft.tokens, strict=False)
                accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                speculator.record_acceptance(sequence, draft, accepted)
            rows = kept.get(sequence) if kept else None
            asks = packed and sequence.request.params.return_sampling_mask
            survivors = packed[place * width : place * width + count] if packed and asks else None
            made = SampledTokens(sequence, draft, row[:count], accepted, status, logprobs, error, rows, survivors)
            found.append(made)
    return found
