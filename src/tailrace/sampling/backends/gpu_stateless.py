"""Sampling of rows with their own programs on a GPU, without slots: the launches of `tailrace.sampling.sample`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from tailrace.kernels.gpu.program import FIELDS, KEY, is_lean, record
from tailrace.kernels.gpu.program import check as check_vocabulary
from tailrace.kernels.gpu.state import Tables
from tailrace.kernels.gpu.step import StepReports, Workspace
from tailrace.kernels.rows import Rows
from tailrace.kernels.types import readable
from tailrace.sampling.backends.gpu import align_logits, launch_kernels, launch_of
from tailrace.sampling.backends.gpu_numbers import step_numbers
from tailrace.sampling.programs import RowProgram


def sample_rows(
    logits: torch.Tensor, rows: Rows, programs: list[RowProgram], noise: np.ndarray, top: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch the kernels for rows whose only edits are masks.

    Args:
        logits: [R, V]. Only the dtype is checked.
        programs: one per row, or one for all rows.
        noise: int64 [R], the rows' keys.
        top: number of alternatives to report; None: no report.

    Returns:
        ids int64 [R], numbers float64 [R, 3 + top] and ranks int64 [R, 1 + top], as in kernels/output.py, all on the
        device.
    """
    logits, stride = align_logits(readable(logits))
    records = np.array([fields_of(program) for program in programs], dtype=np.int64)
    if len(programs) != rows.num_rows:
        records = np.repeat(records, rows.num_rows, axis=0)
    records[:, KEY.value] = noise
    numbers = step_numbers(rows, logits.device, append=records.reshape(-1))
    masked = rows.mask is not None
    scans = frozenset(masked or not is_lean(list(fields)) for fields in map(fields_of, programs))
    stream = torch.cuda.current_stream(logits.device).cuda_stream if logits.is_cuda else 0
    space = get_workspace(logits.shape[1], logits.device, stream)
    behind = numbers.words[numbers.appended :]
    unread = torch.empty(1, dtype=torch.int32, device=logits.device)  # no row has edits of its own
    tables = Tables(behind, FIELDS, unread, unread, behind, unread.view(torch.float32))
    launch = launch_of((logits, stride), rows, numbers, space, tables=tables, scans=scans, reports=StepReports(top))
    launch_kernels(launch)
    count, out = rows.num_rows, launch.out
    return out.token_ids, out.numbers.view(count, -1), out.ranks.view(count, -1)


@lru_cache(maxsize=4096)
def fields_of(program: RowProgram) -> tuple[int, ...]:
    """Return the record of a program without edits, as kernels read it."""
    return tuple(record(program.program, 0, None))


@lru_cache(maxsize=8)
def get_workspace(vocab: int, device: torch.device, stream: int) -> Workspace:
    """Return the memory between the kernels. All calls on a stream share it, because they run one after the other.

    Raises:
        ValueError: the vocabulary is too large.
    """
    check_vocabulary(vocab)
    return Workspace(vocab, device)
