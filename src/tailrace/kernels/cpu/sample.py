"""The whole sampler by csrc/sample/sample.cpp: one call per step."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch

from tailrace import _cpu
from tailrace.errors import ParameterError
from tailrace.kernels.constants import COSTLY, REPORTED, STATEFUL, SURVIVORS
from tailrace.kernels.cpu.program import StepRecord
from tailrace.kernels.cpu.proposal_buffers import ProposalBuffer
from tailrace.kernels.needs import SlotNeeds, filled
from tailrace.kernels.output import KernelOutput, LogprobArrays, SamplingMask
from tailrace.kernels.proposals import Proposed, addresses
from tailrace.kernels.rows import Rows, tensor
from tailrace.kernels.types import CODES, readable


class ProgramTable(Protocol):
    """Programs by slot, in the memory layout of csrc/sample/program.h. `Programs` implements it."""

    @property
    def needs(self) -> SlotNeeds:
        """What each slot needs of a step."""
        ...

    @property
    def address(self) -> int:
        """The address of the first program."""
        ...


class CPUStep:
    """One checked step: [L, V] logits of bf16, f16 or f32, and rows as in kernels/rows.py.

    The logits' rows may be strided; they are not modified. flags: the union of the flags of the slots' programs
    (kernels/constants.py).

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
        if rows.proposals is not None:  # checked here, after the rows themselves
            q = tensor(addresses(rows.proposals, rows.start.tolist(), logits.shape[1])[0])
            self.alive, record.proposals = (*self.alive, q), q.data_ptr()

    def use_row_programs(self, program: torch.Tensor, programs: ProgramTable) -> None:
        """Give each row a program of its own. program: int64 [R], the row's index in `programs`; not checked."""
        self.alive = (*self.alive, program)
        self.record.program, self.record.programs = program.data_ptr(), programs.address

    def run(self) -> KernelOutput:
        """Draw a token for each row, and verify drafts."""
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
        """Draw a draft for each row, and store its distribution. The rows' own drafts and rules are ignored.

        Args:
            noise: of each row, the position and stream of its noise, with its slot's key. The row's methods see the
                row's own position.
            to: of each row, the buffer and the row in it that its distribution is written to.

        Raises:
            ParameterError: a list is not as long as the rows, a buffer has another vocabulary, or lacks the row.
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
    """A step without drafts: each row of logits has one row and its own program. Nothing is checked.

    Args:
        logits: [R, V], readable.
        position: int64 [R], none negative.
        programs: the address of R programs.
        mask: int32 [R, ⌈V / 32⌉], contiguous, on the CPU.
        top: number of alternatives that all programs report. None: no program reports logprobs.

    All arguments must outlive the step.
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
    """Addresses of 0 … R − 1, of 0 … R and of R times −1, and the tensors that hold them."""

    each: int
    start: int
    draft: int
    memory: tuple[torch.Tensor, ...]


@lru_cache(maxsize=1024)
def plain_numbers(count: int) -> PlainNumbers:
    """Return the numbers for `count` rows."""
    each, start, draft = torch.arange(count), torch.arange(count + 1), torch.full((count,), -1, dtype=torch.int64)
    return PlainNumbers(each.data_ptr(), start.data_ptr(), draft.data_ptr(), (each, start, draft))
