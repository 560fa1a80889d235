"""One step of the sampler on a GPU: scan, pick, with drafts settle, with reports describe. Nothing waits for the host; what is launched
follows from what the host knows, grids from shapes alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from tailrace.kernels.gpu.noise import UNFUSED
from tailrace.kernels.gpu.order import splits
from tailrace.kernels.gpu.report import describe
from tailrace.kernels.gpu.sample import pick
from tailrace.kernels.gpu.scan import BLOCK, CHUNK, PLANES, scan_rows
from tailrace.kernels.gpu.settle import settle
from tailrace.kernels.gpu.state import Tables

WARPS = CHUNK.value // 32  # of the kernels with a program per row
SCANS = {False: (16, 8), True: (4, 2)}  # MORE → blocks that a program reads at once, warps
COLUMNS = ("slot", "source", "position", "draft", "rule", "forced", "before", "mask", "dense")


class Step(NamedTuple):
    """As kernels take it: logits [L, V] of bf16, f16 or f32, entries of a row contiguous; columns int64 [R]; start int64 [N + 1].

    forced: the row's token, or −1. before: how many drafts of its request come before it. rule: exact where no draft is to be settled;
    block only where proposals are there. mask: place in masks, int32 [M, ⌈V / 32⌉], or −1. dense: 1 where the row has proposals, float32
    [R, V].

    What a kernel is compiled for are types, which numbers are 1 and which numbers and addresses are multiples of 16: so whatever may differ
    from step to step lies behind addresses that are.
    """

    logits: torch.Tensor
    stride: int
    vocab: int
    slot: torch.Tensor
    source: torch.Tensor
    position: torch.Tensor
    draft: torch.Tensor
    rule: torch.Tensor
    forced: torch.Tensor
    before: torch.Tensor
    mask: torch.Tensor
    dense: torch.Tensor
    start: torch.Tensor
    masks: torch.Tensor
    proposals: torch.Tensor


class Work(NamedTuple):
    """What lies between the kernels, by row; see scan.py and sample.py. plane: entries of a plane of sums."""

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


class Out(NamedTuple):
    """token_ids int64 [N, W]; num_tokens, status int64 [N]; numbers float64 [N, W, 3 + top], ranks int64 [N, W, 1 + top]. All lie in `all`,
    int64, so that one copy takes them to the host."""

    all: torch.Tensor
    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    ranks: torch.Tensor
    numbers: torch.Tensor

    @staticmethod
    def room(requests: int, width: int, top: int | None, device: torch.device) -> Out:
        """For so many; top: alternatives at most, None: nobody reports."""
        size = sum(even(part) for part in sizes(requests, width, top))
        return Out.over(torch.empty(size, dtype=torch.int64, device=device), requests, width, top)

    @staticmethod
    def over(all: torch.Tensor, requests: int, width: int, top: int | None) -> Out:
        """Views of a buffer, here or on the host."""
        wanted = sizes(requests, width, top)
        ids, counts, status, ranks, numbers = (
            part[:size] for part, size in zip(all.split([even(size) for size in wanted]), wanted, strict=True)
        )
        shape = (requests, width, -1) if top is not None else (requests, width, 0)
        return Out(
            all, ids.view(requests, width), counts, status, ranks.view(shape), numbers.view(torch.float64).view(shape)
        )


def sizes(requests: int, width: int, top: int | None) -> list[int]:
    """Of the parts of Out, int64."""
    ranks, numbers = (0, 0) if top is None else (1 + top, 3 + top)
    return [requests * width, requests, requests, requests * width * ranks, requests * width * numbers]


def even(count: int) -> int:
    """So many int64, made up to a multiple of 16 bytes."""
    return count + count % 2


class Workspace:
    """Memory between the kernels; grows to the most rows that a step has had: 8.3 bytes per row and id."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self.vocab, self.device, self.rows = vocab, device, 0
        self.blocks = triton.cdiv(vocab, BLOCK.value)
        self.work: Work | None = None

    def room(self, rows: int) -> Work:
        """For at least so many rows."""
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


def run(
    step: Step,
    tables: Tables,
    work: Work,
    out: Out,
    rows: int,
    *,
    scans: frozenset[bool],
    drafts: bool,
    reports: bool,
) -> None:
    """Launch the step's kernels. scans: which of SCANS have rows to do. drafts: some request has more than a row. reports: some program
    asks for them."""
    blocks, (requests, width) = work.keys.shape[1], out.token_ids.shape
    if not drafts:
        work = work._replace(token=out.token_ids, drawn=out.num_tokens, status=out.status)
    for more in sorted(scans):
        tile, warps = SCANS[more]
        grid = (rows, splits(rows, triton.cdiv(blocks, tile)))
        scan_rows[grid](step, tables, work, blocks, more, tile, num_warps=warps, **UNFUSED)
    pick[(rows,)](step, tables, work, blocks, num_warps=WARPS, **UNFUSED)
    if drafts:
        settle[(requests,)](step, tables, work, out, width, num_warps=WARPS, **UNFUSED)
    if reports:
        top = out.ranks.shape[2] - 1
        describe[(requests, width)](step, tables, work, out, blocks, width, top, num_warps=WARPS, **UNFUSED)
