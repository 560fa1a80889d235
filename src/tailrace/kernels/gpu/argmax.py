"""Greedy argmax: each program finds the best entry of its part of a row; a second kernel finds the best of the parts.

Each row is read once, in its own dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.order import NOBODY, STATUSES, id_of, key_of, ordered, packed, splits, status_of
from tailrace.kernels.types import readable

BLOCK = 4096


@triton.jit
def best_of_part(logits, stride, vocab, blocks, best, BLOCK: tl.constexpr):
    """Write the best entry of a part of a row to `best`, int64 [R, S].

    Part s of a row has every S-th block, so that all parts are equally long and read neighbouring memory.
    """
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    at = logits + row.to(tl.int64) * stride
    found = tl.full((BLOCK,), NOBODY, tl.int64)
    for block in range(part, blocks, parts):
        ids = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(at + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        found = tl.maximum(found, packed(ordered(x), ids))
    tl.store(best + row * parts + part, tl.max(found, 0))


@triton.jit
def best_of_parts(best, parts, ids, status, PARTS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, PARTS)
    found = tl.max(tl.load(best + row * parts + at, mask=at < parts, other=NOBODY), 0)
    state = status_of(key_of(found))
    tl.store(status + row, state)
    tl.store(ids + row, tl.where(state == STATUSES[0], id_of(found), -1))


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = readable(logits)
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    status = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows == 0:
        return ids, status
    blocks = triton.cdiv(vocab, BLOCK)
    parts = splits(rows, blocks)
    best = torch.empty((rows, parts), dtype=torch.int64, device=logits.device)
    with torch.cuda.device_of(logits):
        best_of_part[(rows, parts)](logits, logits.stride(0), vocab, blocks, best, BLOCK)
        best_of_parts[(rows,)](best, parts, ids, status, triton.next_power_of_2(parts))
    return ids, status
