"""The whole sampler by csrc/sample.cpp: one call per step."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch

from tailrace import _cpu
from tailrace.errors import ParameterError
from tailrace.kernels.cpu.program import StepRecord
from tailrace.kernels.cpu.proposal_buffers import ProposalBuffer
from tailrace.kernels.needs import COSTLY, REPORTED, STATEFUL, SURVIVORS, SlotNeeds, filled
from tailrace.kernels.output import KernelOutput, LogprobArrays, SamplingMask
from tailrace.kernels.proposals import Proposed, addresses
from tailrace.kernels.rows import Rows, tensor
from tailrace.kernels.types import CODES, readable


class ProgramTable(Protocol):
    """Programs by slot, in the memory layout of csrc/program.h; `Programs` is one."""

    @property
    def needs(self) -> SlotNeeds:
        """What each asks of a step."""
        ...

    @property
    def address(self) -> int:
        """Where the first lies."""
        ...


class CPUStep:
    """One step, checked: [L, V] logits of bf16, f16 or f32, rows may be strided, not modified; rows as in
    kernels/rows.py.

    flags: what the programs of its slots have set, together (kernels/needs.py).

    Raises:
        ParameterError: shapes or dtypes do not fit; a slot is empty; a source, position, draft or mask is out of range.
    """

    def __init__(self, logits: torch.Tensor, rows: Rows, programs: ProgramTable) -> None:
        logits = readable(logits)
        self.record = record = filled(StepRecord(), logits, rows, programs.needs)
        self.alive = (logits, rows, programs)  # the record holds addresses only
        self.address, self.shape = ctypes.addressof(record), (rows.num_requests, rows.width)
        self.flags: int = record.flags
        record.logits, record.type, record.stride = logits.data_ptr(), CODES[logits.dtype], logits.stride(0)
        record.programs = programs.address
        if rows.mask is not None and rows.masks is not None:
            record.masks = rows.masks.data_ptr()
        if rows.proposals is not None:  # now that the rows are known to be some
            q = tensor(addresses(rows.proposals, rows.start.tolist(), logits.shape[1])[0])
            self.alive, record.proposals = (*self.alive, q), q.data_ptr()

    def use_row_programs(self, program: torch.Tensor, programs: ProgramTable) -> None:
        """Rows have programs of their own. program: int64 [R], where each row's is in `programs`; not checked."""
        self.alive = (*self.alive, program)
        self.record.program, self.record.programs = program.data_ptr(), programs.address

    def run(self) -> KernelOutput:
        """Draw, and verify drafts."""
        record, out = self.record, KernelOutput.empty(*self.shape)
        record.token_ids, record.num_tokens = out.token_ids.data_ptr(), out.num_tokens.data_ptr()
        record.status = out.status.data_ptr()
        if self.flags & REPORTED:
            made = LogprobArrays.empty(self.shape, record.top)
            record.numbers, record.ranks = made.numbers.data_ptr(), made.ranks.data_ptr()
            out = out._replace(logprobs=made)
        if self.flags & COSTLY:
            seconds = torch.zeros(self.shape[0], dtype=torch.float64)
            out, record.seconds = out._replace(seconds=seconds), seconds.data_ptr()
        if self.flags & STATEFUL:
            updates = torch.empty(self.shape, dtype=torch.float64)
            out, record.updates = out._replace(updates=updates), updates.data_ptr()
        if self.flags & SURVIVORS:
            tokens = self.shape[0] * self.shape[1]
            survivors = _cpu.Survivors(tokens)
            record.survivors = survivors.address
            _cpu.sample(self.address)
            return out._replace(sampling_mask=SamplingMask.of(survivors, tokens))
        _cpu.sample(self.address)
        return out

    def propose(self, noise: Sequence[tuple[int, int]], to: Sequence[tuple[ProposalBuffer, int]]) -> Proposed:
        """Draw a draft for each row, and keep what it was drawn from; the rows' drafts and rules are not looked at.

        Args:
            noise: of each row, its position and stream; with its slot's key. The row's own position is what its methods
                see.
            to: of each row, the place and the row there that its distribution goes to.

        Raises:
            ParameterError: there are not as many, a place is of another vocabulary, or has no such row.
        """
        rows, vocab = self.record.rows, self.record.vocab
        if not len(noise) == len(to) == rows or not all(place.fits(row, vocab) for place, row in to):
            raise ParameterError(f"noise and to must have {rows} entries, rows of {vocab} tokens", "to")
        begin, stream = (array("q", part) for part in zip(*noise, strict=True))
        q, note = (array("q", part) for part in zip(*(place.addresses(row) for place, row in to), strict=True))
        out = Proposed(torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int32))
        _cpu.propose(
            self.address,
            begin.buffer_info()[0],
            stream.buffer_info()[0],
            q.buffer_info()[0],
            note.buffer_info()[0],
            out.token_ids.data_ptr(),
            out.status.data_ptr(),
        )
        return out


class PlainStep(CPUStep):
    """A row for each row of logits, each with a program of its own and without drafts; nothing is left to check.

    Args:
        logits: [R, V], readable. position: int64 [R], none negative. programs: where R programs lie. mask: int32 [R, ⌈V
            / 32⌉], contiguous, on the CPU. top: alternatives that all programs report; None: none reports anything.
            What is given must outlive the step.
    """

    def __init__(
        self, logits: torch.Tensor, position: torch.Tensor, programs: int, mask: torch.Tensor | None, top: int | None
    ) -> None:
        count, vocab = logits.shape
        numbers = plain_numbers(count)
        self.record = record = StepRecord(count, vocab, count, count, count, 1, None, numbers.each, numbers.each)
        record.position, record.start, record.draft = position.data_ptr(), numbers.start, numbers.draft
        record.logits, record.type, record.stride = logits.data_ptr(), CODES[logits.dtype], logits.stride(0)
        record.programs, record.top = programs, top or 0
        if mask is not None:
            record.mask, record.num_masks, record.masks = numbers.each, count, mask.data_ptr()
        self.flags = 0 if top is None else REPORTED
        self.address, self.shape = ctypes.addressof(record), (count, 1)


class PlainNumbers(NamedTuple):
    """Addresses of 0 … R − 1, 0 … R and R times −1, and what lies there."""

    each: int
    start: int
    draft: int
    memory: tuple[torch.Tensor, ...]


@lru_cache(maxsize=1024)
def plain_numbers(count: int) -> PlainNumbers:
    """Those of so many rows."""
    each, start, draft = torch.arange(count), torch.arange(count + 1), torch.full((count,), -1, dtype=torch.int64)
    return PlainNumbers(each.data_ptr(), start.data_ptr(), draft.data_ptr(), (each, start, draft))
