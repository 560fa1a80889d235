"""One step of the sampler on a GPU: scan, sample_rows, with drafts verify_rows, with reports survivors_of_rows and
logprobs_of_rows.

No launch waits for the host. The host's own knowledge decides which kernels are launched, and shapes alone decide their
grids.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
import triton

from tailrace.kernels.gpu.launcher import Launcher
from tailrace.kernels.gpu.logprobs import logprobs_of_rows
from tailrace.kernels.gpu.noise import UNFUSED
from tailrace.kernels.gpu.order import splits
from tailrace.kernels.gpu.propose import PARTS, fill_proposals, propose_rows
from tailrace.kernels.gpu.sample import sample_rows
from tailrace.kernels.gpu.scan import BLOCK, CHUNK, PLANES, scan_rows
from tailrace.kernels.gpu.state import Tables
from tailrace.kernels.gpu.survivors import survivors_of_rows
from tailrace.kernels.gpu.verify import verify_rows
from tailrace.kernels.output import LogprobArrays

WARPS = CHUNK.value // 32  # in the kernels with a program per row
SCANS = {False: (16, 8), True: (4, 2)}  # MORE → blocks that a program reads at once, warps


class GPUStep(NamedTuple):
    """A step as kernels take it.

    - logits: [L, V] of bf16, f16 or f32, entries of a row contiguous.
    - numbers: int64, the columns of columns.py, `padded` entries in each.
    - masks: int32 [M, ⌈V / 32⌉].

    Triton compiles a kernel for the types of its arguments, for numbers that are 1, and for numbers and addresses that
    are multiples of 16. So every number that may differ from step to step is a multiple of 16, or lies behind such an
    address.
    """

    logits: torch.Tensor
    stride: int
    vocab: int
    numbers: torch.Tensor
    padded: int
    masks: torch.Tensor

    @property
    def compiled_for(self) -> tuple[Hashable, ...]:
        """The properties of the step that kernels are compiled for and that may differ."""
        return self.logits.dtype, self.logits.device, self.stride % 16 == 0, self.vocab, self.masks.data_ptr() % 16 == 0


class Work(NamedTuple):
    """Memory that passes results between kernels, by row; see scan.py and sample.py. plane: entries of a plane of
    sums."""

    keys: torch.Tensor
    raw_keys: torch.Tensor
    sums: torch.Tensor
    plane: int
    x: torch.Tensor
    ids: torch.Tensor
    found: torch.Tensor
    token: torch.Tensor
    status: torch.Tensor
    drawn: torch.Tensor
    count: torch.Tensor


class StepReports(NamedTuple):
    """The reports on a step's tokens. top: the most alternatives; None: no logprobs. words: ⌈V / 32⌉ if survivors are
    reported, else 0."""

    top: int | None = None
    words: int = 0


class Out(NamedTuple):
    """The results of a step, for N requests of at most W tokens.

    - token_ids: int64 [N · W]. num_tokens, status: int64 [N].
    - ranks: int64 [N · W · (1 + top)]. numbers: float64 [N · W · (3 + top)].
    - survivors: int32 [N · W · words].

    All are views of `all`, int64, so that one copy transfers them to the host.
    """

    all: torch.Tensor
    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    ranks: torch.Tensor
    numbers: torch.Tensor
    survivors: torch.Tensor

    @staticmethod
    def empty(shape: tuple[int, int], reports: StepReports, device: torch.device) -> Out:
        """Return results with undefined contents. shape: requests, and the most tokens of each."""
        size = sum(even(part) for part in sizes(shape, reports))
        return Out.over(torch.empty(size, dtype=torch.int64, device=device), shape, reports)

    @staticmethod
    def over(all: torch.Tensor, shape: tuple[int, int], reports: StepReports) -> Out:
        """Return views of a buffer, on the device or on the host."""
        due = sizes(shape, reports)
        # In one call: a slice for each takes three times as long.
        lying = all.split_with_sizes([even(size) for size in due])
        parts = [part if size % 2 == 0 else part[:size] for part, size in zip(lying, due, strict=True)]
        return Out(all, *parts[:4], parts[4].view(torch.float64), parts[5].view(torch.int32))

    def logprob_arrays(self, shape: tuple[int, int], reports: StepReports) -> LogprobArrays | None:
        """Return views of the logprobs; None if none are reported."""
        if reports.top is None:
            return None
        return LogprobArrays(self.numbers.view(*shape, 3 + reports.top), self.ranks.view(*shape, 1 + reports.top))

    def survivor_bits(self, shape: tuple[int, int], reports: StepReports) -> torch.Tensor | None:
        """Return int32 [N, W, words], a view; None if none are reported."""
        size = shape[0] * shape[1] * reports.words
        return self.survivors[:size].view(*shape, reports.words) if reports.words else None


def sizes(shape: tuple[int, int], reports: StepReports) -> list[int]:
    """Return the sizes of the parts of Out, in int64."""
    requests, tokens = shape[0], shape[0] * shape[1]
    ranks, numbers = (0, 0) if reports.top is None else (1 + reports.top, 3 + reports.top)
    return [tokens, requests, requests, tokens * ranks, tokens * numbers, -(-tokens * reports.words // 2)]


def even(count: int) -> int:
    """Return this number of int64, rounded up to a multiple of 16 bytes."""
    return count + count % 2


class Workspace:
    """Memory between the kernels: 8.3 bytes per row and id. It grows to the most rows that a step has had."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self.vocab, self.device, self.rows = vocab, device, 0
        self.blocks = triton.cdiv(vocab, BLOCK.value)
        self.work: Work | None = None

    def reserve(self, rows: int) -> Work:
        """Return memory for at least `rows` rows."""
        if self.work is None or rows > self.rows:
            self.rows = -(-max(rows, 2 * self.rows) // 16) * 16
            keys, raw_keys, found = (
                torch.empty((self.rows, self.blocks), dtype=torch.int32, device=self.device) for _ in range(3)
            )
            sums = torch.empty((PLANES, self.rows, self.blocks), dtype=torch.float32, device=self.device)
            x = torch.empty((self.rows, self.vocab), dtype=torch.float32, device=self.device)
            ids = torch.empty((self.rows, self.vocab), dtype=torch.int32, device=self.device)
            longs = torch.empty((3, self.rows), dtype=torch.int64, device=self.device)
            count = torch.empty(self.rows, dtype=torch.int32, device=self.device)
            self.work = Work(keys, raw_keys, sums, self.rows * self.blocks, x, ids, found, *longs, count)
        return self.work


SCAN = {more: Launcher(scan_rows, num_warps=warps, **UNFUSED) for more, (_, warps) in SCANS.items()}
SAMPLE, VERIFY, SURVIVORS, LOGPROBS, FILL, PROPOSE = (
    Launcher(kernel, num_warps=WARPS, **UNFUSED)
    for kernel in (sample_rows, verify_rows, survivors_of_rows, logprobs_of_rows, fill_proposals, propose_rows)
)


class Launch(NamedTuple):
    """A step whose numbers are on the device, and all memory that its kernels write to.

    - rows: the number of rows. shape: requests, and the most tokens of each.
    - scans: the SCANS that have rows to do.
    - held: memory whose addresses are among the numbers.
    - masses: int64 [rows, PARTS] if drafts are to be drawn, else None.
    """

    step: GPUStep
    tables: Tables
    work: Work
    out: Out
    rows: int
    shape: tuple[int, int]
    scans: frozenset[bool]
    reports: StepReports
    held: tuple[torch.Tensor, ...] = ()
    masses: torch.Tensor | None = None


def run(launch: Launch) -> None:
    """Launch the step's kernels."""
    step, tables, work, out, rows, (requests, width), scans, (top, words), _, masses = launch
    blocks, key = work.keys.shape[1], step.compiled_for
    if width == 1:
        work = work._replace(token=out.token_ids, drawn=out.num_tokens, status=out.status)
    for more in sorted(scans):
        tile = SCANS[more][0]
        grid = (rows, splits(rows, triton.cdiv(blocks, tile)))
        SCAN[more].launch(grid, key, step, tables, work, blocks, more, tile)
    SAMPLE.launch((rows, 1), key, step, tables, work, blocks)
    if masses is not None:
        FILL.launch((rows, PARTS.value), key, step, tables, work, masses, blocks)
        PROPOSE.launch((rows, PARTS.value), key, step, tables, work, masses, blocks)
    if width > 1:
        VERIFY.launch((requests, 1), key, step, tables, work, out, width)
    if words:
        SURVIVORS.launch((requests, width), key, step, tables, work, out, width)
    if top is not None:
        LOGPROBS.launch((requests, width), key, step, tables, work, out, blocks, width, top)


def copy_candidates(launch: Launch) -> torch.Tensor:
    """Return the refined logits of a step without drafts, float32 [rows, V], relative to the largest. Removed tokens
    have −inf. Each row lists its survivors."""
    work, rows, vocab = launch.work, launch.rows, launch.step.vocab
    there = torch.arange(vocab, device=work.x.device) < work.count[:rows, None]
    found = torch.full((rows, vocab + 1), -torch.inf, device=work.x.device)
    return found.scatter_(1, work.ids[:rows].long().where(there, vocab), work.x[:rows])[:, :vocab]
