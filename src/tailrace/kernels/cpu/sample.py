"""The whole sampler by csrc/sample.cpp: one call per step."""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tailrace import _cpu
from tailrace.errors import ParameterError
from tailrace.kernels.cpu.program import COSTLY, LEARNING, Programs, StepRecord
from tailrace.kernels.cpu.shelf import Place
from tailrace.kernels.proposals import addresses, shown
from tailrace.kernels.rows import Rows, tensor
from tailrace.kernels.types import CODES, readable

FIELD = re.compile(r"(?:the )?(\w+)")  # that a complaint of csrc/sample.cpp begins with
APART = -1  # the status of a request that was left alone


class Reports(NamedTuple):
    """Set where a program asks. numbers: float64 [N, W, 3 + top], logprob, entropy and varentropy in nats, the top logprobs.
    ranks: int64 [N, W, 1 + top], rank, the top ids."""

    numbers: torch.Tensor
    ranks: torch.Tensor


class Outcome(NamedTuple):
    """N requests, W tokens at most each. token_ids int64 [N, W], −1 where there is none; num_tokens int64 [N]; status int32 [N],
    APART where the kernels don't have what the request asks; reports, if any program asks for some; lessons float64 [N, W], if any
    learns: ln of each token's probability among those it learns from, NaN where it learns nothing."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    reports: Reports | None
    lessons: torch.Tensor | None = None
    seconds: torch.Tensor | None = None


class Proposed(NamedTuple):
    """Of R rows. token_ids int64 [R], −1 where there is none; status int32 [R], APART as in Outcome."""

    token_ids: torch.Tensor
    status: torch.Tensor


class Step:
    """One step, checked: [L, V] logits of bf16, f16 or f32, rows may be strided, not modified; rows as in kernels/rows.py.

    flags: what the programs of its slots have set, together, and REPORTED if any asks for reports (kernels/cpu/program.py).

    Raises:
        ParameterError: shapes or dtypes do not fit; a slot is empty; a source, position, draft or mask is out of range.
    """

    def __init__(self, logits: torch.Tensor, rows: Rows, programs: Programs) -> None:
        logits = readable(logits)
        count, vocab = logits.shape
        count_rows, n = rows.num_rows, rows.num_requests
        if n < 0 or not rows.source.numel() == rows.position.numel() == rows.draft.numel() == count_rows:
            raise ParameterError(
                f"source, position and draft must have {count_rows} entries, as slot has; start at least one", "source"
            )
        if rows.rule is not None and rows.rule.numel() != n:
            raise ParameterError(f"rule must have {n} entries, one per request, got {rows.rule.numel()}", "rule")
        self.shape = (n, rows.width)
        self.alive = (logits, rows, programs)  # the record holds addresses only
        if isinstance(rows.width, bool) or not isinstance(rows.width, int) or not 1 <= rows.width <= max(1, count_rows):
            raise ParameterError(
                f"width must be an integer in [1, {max(1, count_rows)}], got {rows.width!r:.100}", "width"
            )
        self.record = StepRecord(
            logits.data_ptr(),
            CODES[logits.dtype],
            count,
            vocab,
            logits.stride(0),
            programs.num_slots,
            rows.num_rows,
            *self.shape,
            programs.address,
            rows.slot.data_ptr(),
            rows.source.data_ptr(),
            rows.position.data_ptr(),
            rows.start.data_ptr(),
            rows.draft.data_ptr(),
            None if rows.rule is None else rows.rule.data_ptr(),
        )
        if rows.mask is not None:
            point_at_masks(self.record, rows.mask, rows.masks)
        if (guidance := rows.guidance) is not None:
            if not guidance.companion.numel() == guidance.scale.numel() == count_rows:
                raise ParameterError(f"companion and scale must have {count_rows} entries, as slot has", "companion")
            self.record.companion, self.record.scale = guidance.companion.data_ptr(), guidance.scale.data_ptr()
        self.address = ctypes.addressof(self.record)
        try:
            _cpu.check(self.address)
        except ValueError as error:
            named = FIELD.match(str(error))
            raise ParameterError(str(error), named and named[1]) from None
        if rows.proposals is not None:  # now that the rows are known to be some
            q = tensor(addresses(rows.proposals, rows.start.tolist(), vocab))
            self.alive, self.record.proposals = (*self.alive, q), q.data_ptr()
        self.flags: int = self.record.flags

    def unroll(self, program: torch.Tensor, programs: Programs) -> None:
        """Rows have programs of their own. program: int64 [R], where each row's is in `programs`; not checked."""
        self.alive = (*self.alive, program)
        self.record.program, self.record.programs = program.data_ptr(), programs.address

    def outcome(self) -> Outcome:
        """Room for what comes out."""
        n, width = self.shape
        return Outcome(
            torch.empty((n, width), dtype=torch.int64),
            torch.empty(n, dtype=torch.int64),
            torch.empty(n, dtype=torch.int32),
            None,
        )

    def run(self, reports: bool) -> Outcome:
        """Draw, and verify drafts. reports: some program asks for them (REPORTED is in `flags`)."""
        record, out = self.record, self.outcome()
        record.token_ids, record.num_tokens = out.token_ids.data_ptr(), out.num_tokens.data_ptr()
        record.status = out.status.data_ptr()
        if reports:
            made = Reports(
                torch.empty((*self.shape, 3 + record.top), dtype=torch.float64),
                torch.empty((*self.shape, 1 + record.top), dtype=torch.int64),
            )
            record.numbers, record.ranks = made.numbers.data_ptr(), made.ranks.data_ptr()
            out = out._replace(reports=made)
        if self.flags & COSTLY:
            out = out._replace(seconds=torch.zeros(self.shape[0], dtype=torch.float64))
            record.seconds = out.seconds.data_ptr()  # pyright: ignore[reportOptionalMemberAccess]
        if self.flags & LEARNING:
            out = out._replace(lessons=torch.empty(self.shape, dtype=torch.float64))
            record.lessons = out.lessons.data_ptr()  # pyright: ignore[reportOptionalMemberAccess]
        _cpu.sample(self.address)
        return out

    def propose(self, noise: Sequence[tuple[int, int]], to: Sequence[tuple[Place, int]]) -> Proposed:
        """Draw a draft for each row, and keep what it was drawn from; the rows' drafts and rules are not looked at.

        Args:
            noise: of each row, its position and stream; with its slot's key. The row's own position is what its methods see.
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


def point_at_masks(record: StepRecord, mask: torch.Tensor, masks: torch.Tensor | None) -> None:
    """Their addresses become the record's; the numbers in `mask` are checked with the other ones.

    Raises:
        ParameterError: shapes or dtypes do not fit, or there are no masks.
    """
    if (
        not isinstance(mask, torch.Tensor)
        or mask.dtype != torch.int64
        or mask.shape != (record.rows,)
        or not mask.is_contiguous()
    ):
        raise ParameterError(f"mask must be contiguous int64 [{record.rows}], got {shown(mask)}", "mask")
    words = -(-record.vocab // 32)
    if (
        not isinstance(masks, torch.Tensor)
        or masks.dtype != torch.int32
        or masks.shape != (len(masks), words)
        or not masks.is_contiguous()
    ):
        raise ParameterError(
            f"masks must be contiguous int32 [M, {words}] where rows have a mask, got {shown(masks)}", "masks"
        )
    record.mask, record.masks, record.num_masks = mask.data_ptr(), masks.data_ptr(), len(masks)
