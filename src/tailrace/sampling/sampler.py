"""Logits → token ids: edit, prune, refine, draw, report; with drafts, verify. Knows no method by name, no request, no text.

On the CPU one call of the kernels does a whole step (kernels/cpu/sample.py), on a GPU two launches (kernels/gpu/sample.py) for those
requests whose programs they have so far. A request that asks for what the kernels don't have goes the reference's way
(sampling/reference.py, sampling/verify.py), alone. All draw by Gumbel-max with noise that is a function of (key, position, token id): a
row's token depends on its own logits, parameters, key and position alone.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import torch

from tailrace.kernels.cpu.program import RARE, REPORTED
from tailrace.kernels.cpu.sample import APART, Outcome, Step
from tailrace.kernels.program import Mask, Program
from tailrace.kernels.rows import Rows
from tailrace.kernels.status import OK
from tailrace.kernels.types import readable
from tailrace.sampling.report import Logprobs
from tailrace.sampling.slots import Slot, Slots
from tailrace.sampling.unroll import unroll
from tailrace.sampling.verify import verify

Backend = Literal["reference", "cpu", "gpu"]


@dataclass(slots=True)
class Sampled:
    """token_ids: int64 [N, K + 1], −1 where there is none. num_tokens: int64 [N], 0 where status is not OK. status: int32 [N],
    kernels/status.py. logprobs: per request one entry per token, or None where it did not ask."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    logprobs: list[list[Logprobs] | None]


class Pending:
    """Draws on their way to the host.

    token_ids: int64 [N, K + 1] where the logits are, for whatever is launched there next: what `wait` says of them.
    """

    def __init__(self, token_ids: torch.Tensor, sampled: Sampled) -> None:
        self.token_ids = token_ids
        self._sampled = sampled

    def wait(self) -> Sampled:
        """Until they are there."""
        return self._sampled


class Sampler:
    """Draws for the requests of a step from their slots' distributions; does not commit what it drew.

    Args:
        backend: None takes the kernels of the device where the logits are.
    """

    def __init__(self, slots: Slots, backend: Backend | None = None) -> None:
        self.slots = slots
        self.backend: Backend | None = backend
        self._gpu: OnGPU | None = None

    def __call__(self, logits: torch.Tensor, rows: Rows) -> Sampled:
        """`begin`, and wait."""
        return self.begin(logits, rows).wait()

    def begin(self, logits: torch.Tensor, rows: Rows) -> Pending:
        """logits [L, V] of bf16, f16 or f32, rows may be strided; not modified. rows: see kernels/rows.py.

        Raises:
            ValueError: the vocabulary differs, a slot is empty, or a number of `rows` is out of range.
        """
        if logits.dim() != 2 or logits.shape[1] != self.slots.vocab_size:
            raise ValueError(f"logits must have {self.slots.vocab_size} columns, got {tuple(logits.shape)}")
        step = Step(logits, rows, self.slots.programs)
        drafted = self._drafted(rows) if rows.width > 1 else []
        backend = self.backend or ("cpu" if logits.device.type == "cpu" else "gpu")
        if backend != "cpu":
            outcome = step.outcome()
            outcome.token_ids.fill_(-1)
            outcome.num_tokens.fill_(0)
            outcome.status.fill_(APART)
            if backend == "gpu":
                self._gpu = self._gpu or OnGPU(self.slots, logits.device)
                self._gpu.fill_in(logits, rows, outcome)
        else:
            if moving := [i for i, slot in drafted if slot.unrolls]:
                step.unroll(unroll(self.slots, rows, moving), self.slots.programs)
            outcome = step.run(bool(step.flags & REPORTED))
            # no slot's record is touched where nobody is special: that would cost more than sampling
            if not step.flags & (RARE | REPORTED):
                sampled = Sampled(outcome.token_ids, outcome.num_tokens, outcome.status, [None] * rows.num_requests)
                return Pending(sampled.token_ids, sampled)
        sampled = Sampled(outcome.token_ids, outcome.num_tokens, outcome.status, self._read(outcome, rows))
        for i in (outcome.status == APART).nonzero().squeeze(1).tolist():
            self._by_reference(logits, rows, i, sampled)
        return Pending(sampled.token_ids.to(logits.device), sampled)

    def _drafted(self, rows: Rows) -> list[tuple[int, Slot]]:
        """The requests with drafts, and their slots.

        Raises:
            ValueError: there are drafts that can't be verified together.
        """
        owners = rows.slot[rows.start[:-1]].tolist()
        drafted = [(i, self.slots[owners[i]]) for i in (rows.start.diff() > 1).nonzero().squeeze(1).tolist()]
        counts = Counter(owners)
        for i, slot in drafted:
            if counts[owners[i]] > 1 and slot.history is not None:
                raise ValueError(
                    f"slot {owners[i]} has {counts[owners[i]]} requests with drafts in one step, and a history that they share"
                )
        return drafted

    def _by_reference(self, logits: torch.Tensor, rows: Rows, i: int, sampled: Sampled) -> None:
        """Fill in request i."""
        first, last = int(rows.start[i]), int(rows.start[i + 1]) - 1
        slot = self.slots[int(rows.slot[first])]
        tokens, described, status = verify(
            [logits[int(source)] for source in rows.source[first : last + 1]], slot, int(rows.position[first]),
            rows.draft[first:last].tolist(), None if rows.proposals is None else rows.proposals[first:last], rows.rule_of(i),
            [allowed(rows, row) for row in range(first, last + 1)],
        )  # fmt: skip
        sampled.token_ids[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        sampled.num_tokens[i], sampled.status[i] = len(tokens), status
        if slot.reported:
            sampled.logprobs[i] = [entry for entry in described if entry is not None]

    def _read(self, outcome: Outcome, rows: Rows) -> list[list[Logprobs] | None]:
        """The requests' reports out of the kernels' arrays; None for those that did not ask."""
        reports: list[list[Logprobs] | None] = [None] * rows.num_requests
        if outcome.reports is None:
            return reports
        # whole arrays become lists at once: a tensor per row would cost more than the sampling
        numbers, ranks = outcome.reports.numbers.tolist(), outcome.reports.ranks.tolist()
        owners = rows.slot if rows.width == 1 else rows.slot[rows.start[:-1]]
        for i, (owner, count) in enumerate(zip(owners.tolist(), outcome.num_tokens.tolist(), strict=True)):
            slot = self.slots[owner]
            if slot.reported:
                params = slot.params
                reports[i] = [
                    logprobs(numbers[i][j], ranks[i][j], params.logprobs, params.report_entropy) for j in range(count)
                ]
        return reports


class OnGPU:
    """Requests that ask for no more than the GPU's kernels have so far: one row, no edits, no mask, no reports. The programs they need are
    written to the device when they are first met."""

    def __init__(self, slots: Slots, device: torch.device) -> None:
        from tailrace.kernels.gpu.program import Table

        self.slots = slots
        self.table = Table(len(slots.slots), device)
        self.written: list[Program | None] = [None] * len(slots.slots)

    def fill_in(self, logits: torch.Tensor, rows: Rows, outcome: Outcome) -> None:
        """The outcome of those requests; that of the others stays APART."""
        from tailrace.kernels.gpu.sample import sample

        mine = [i for i, first in enumerate(rows.start[:-1].tolist()) if self._takes(rows, i, first)]
        if not mine:
            return
        at = rows.start[:-1][mine]
        source, slot, position = (part[at].to(logits.device) for part in (rows.source, rows.slot, rows.position))
        ids, status = sample(readable(logits), source, slot, position, self.table)
        outcome.token_ids[mine, 0], outcome.status[mine] = ids.cpu(), status.cpu()
        outcome.num_tokens[mine] = (outcome.status[mine] == OK).long()

    def _takes(self, rows: Rows, request: int, row: int) -> bool:
        """Whether it can be done here; its program is on the device afterwards."""
        from tailrace.kernels.gpu.program import has

        owner = int(rows.slot[row])
        slot, program = self.slots[owner], self.slots.compiled[owner]
        masked = rows.mask is not None and int(rows.mask[row]) >= 0
        alone = int(rows.start[request + 1]) == row + 1
        plain = not slot.program and slot.forced is None and not slot.reported
        if program is None or masked or not alone or not plain or not has(program):
            return False
        if self.written[owner] is not program:
            self.table.write(owner, program)
            self.written[owner] = program
        return True


def allowed(rows: Rows, row: int) -> Mask | None:
    """The grammar's mask of a row, if it has one."""
    if rows.mask is None or rows.masks is None or (place := int(rows.mask[row])) < 0:
        return None
    return Mask(rows.masks[place].numpy().view("uint32"))


def logprobs(numbers: list[float], ranks: list[int], top: int | None, entropies: bool) -> Logprobs:
    """One token's, out of the kernels' arrays."""
    more = numbers[1:3] if entropies else ()
    if top is None:
        return Logprobs(math.nan, 0, [], [], *more)
    return Logprobs(numbers[0], ranks[0], ranks[1 : 1 + top], numbers[3 : 3 + top], *more)
