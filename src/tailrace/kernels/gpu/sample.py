"""The whole sampler on a GPU, in two launches: scan, the one read of the logits, and pick, a program per row over what survives."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.draw import first_of, winner, winner_of_all
from tailrace.kernels.gpu.order import NONE_KEY, STATUSES, id_of, status_of, value_of
from tailrace.kernels.gpu.program import Table
from tailrace.kernels.gpu.refine import TEMPERATURE, first_depth, refine
from tailrace.kernels.gpu.scan import BLOCK, MASS, SIGMA, scan
from tailrace.kernels.gpu.survivors import CHUNK, collect
from tailrace.kernels.program import MAX_STAGES

DRAW_STREAM = tl.constexpr(0)  # csrc/draw.h
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def pick(
    logits, stride, vocab, blocks, source, slot, position, keys, mass, moments, noise_key, greedy, wants, mass_temperature,
    num_stages, kinds, ks, knobs, max_stages, x, ids, found, token_ids, status, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: what the scan found → its token, −1 where its status is not OK."""
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    owner = tl.load(slot + row)
    at = logits + tl.load(source + row) * stride
    keys += row * blocks
    x, ids, found = x + row * vocab, ids + row * vocab, found + row * blocks
    asked, times = tl.load(wants + owner), tl.load(mass_temperature + owner)

    highest = tl.full((), -(2**31), tl.int32)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        highest = tl.maximum(highest, tl.max(tl.load(keys + block, mask=block < blocks, other=-(2**31)), 0))
    state = status_of(highest)
    tl.store(status + row, state)
    token = tl.full((), -1, tl.int64)
    if state == STATUSES[0]:
        top = value_of(highest)
        stages = tl.load(num_stages + owner)
        kinds, ks, knobs = kinds + owner * max_stages, ks + owner * max_stages, knobs + owner * max_stages
        likeliest = first_of(at, vocab, blocks, keys, highest, BLOCK)
        if tl.load(greedy + owner) == 1:
            token = likeliest.to(tl.int64)
        else:
            seed, place = tl.load(noise_key + owner), tl.load(position + row)
            whole, sigma = joined(
                keys, mass + row * blocks, moments + row * blocks, rows * blocks.to(tl.int64), blocks, top, times, asked
            )
            temperature, plain = tl.full((), 1.0, tl.float64), 1
            for s in range(stages):
                scaled = tl.load(kinds + s) == TEMPERATURE
                plain = tl.where(scaled, plain, 0)
                temperature = tl.where(scaled, temperature * tl.load(knobs + s), temperature)
            if plain == 1:
                best = winner_of_all(
                    at, vocab, blocks, keys, top, temperature, x, ids, found, likeliest, seed, place, DRAW_STREAM
                )
            else:
                depth = first_depth(kinds, ks, knobs, stages, blocks, keys, top, whole, sigma)
                n = tl.full((), 0, tl.int32)
                while depth < 1.0:
                    floor = tl.maximum(top + tl.maximum(depth, -1e38), LOWEST).to(tl.float32)
                    n = collect(at, vocab, keys, blocks, floor, top, x, ids, found)
                    n, deeper = refine(kinds, ks, knobs, stages, at, vocab, top, whole, times, sigma, depth, x, ids, n)
                    depth = tl.where(deeper == 0.0, 2.0, deeper)
                best = winner(x, ids, n, seed, place, DRAW_STREAM)
            token = id_of(best)
    tl.store(token_ids + row, token)


@triton.jit
def joined(keys, mass, moments, size, blocks, top, temperature, asked):
    """The row's mass and the standard deviation of its finite logits, from its blocks'."""
    whole, count = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    first_moment, second_moment = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        key = tl.load(keys + block, mask=block < blocks, other=NONE_KEY)
        inside = key > NONE_KEY
        below = tl.where(inside, value_of(key), top).to(tl.float64) - top
        if asked & MASS:
            each = tl.load(mass + block, mask=inside, other=0.0).to(tl.float64)
            whole += tl.sum(each * tl.exp(below / temperature), 0)
        if asked & SIGMA:
            n = tl.load(moments + block, mask=inside, other=0.0).to(tl.float64)
            d = tl.load(moments + size + block, mask=inside, other=0.0).to(tl.float64)
            dd = tl.load(moments + 2 * size + block, mask=inside, other=0.0).to(tl.float64)
            count += tl.sum(n, 0)
            first_moment += tl.sum(d + n * below, 0)
            second_moment += tl.sum(dd + 2.0 * below * d + n * below * below, 0)
    mean = first_moment / tl.maximum(count, 1.0)
    return whole, tl.sqrt(tl.maximum(0.0, second_moment / tl.maximum(count, 1.0) - mean * mean))


def sample(
    logits: torch.Tensor, source: torch.Tensor, slot: torch.Tensor, position: torch.Tensor, table: Table
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row, from distributions without edits.

    logits [L, V] of bf16, f16 or f32, entries of a row contiguous, not modified; source, slot, position int64 [R], on the device. Nothing
    is checked, nothing waits for the host.

    Returns:
        ids int64 [R], −1 where status int32 [R] is not OK (kernels/status.py).
    """
    rows, vocab = source.numel(), logits.shape[1]
    device = logits.device
    token_ids = torch.empty(rows, dtype=torch.int64, device=device)
    status = torch.empty(rows, dtype=torch.int32, device=device)
    if rows == 0:
        return token_ids, status
    blocks = triton.cdiv(vocab, BLOCK)
    x = torch.empty((rows, vocab), dtype=torch.float32, device=device)
    ids = torch.empty((rows, vocab), dtype=torch.int32, device=device)
    found = torch.empty((rows, blocks), dtype=torch.int32, device=device)
    with torch.cuda.device_of(logits):
        keys, mass, moments = scan(logits, source, slot, table.wants, table.scale)
        pick[(rows,)](
            logits, logits.stride(0), vocab, blocks, source, slot, position, keys, mass, moments, table.key, table.greedy, table.wants,
            table.mass_temperature, table.num_stages, table.kinds, table.ks, table.knobs, MAX_STAGES, x, ids, found, token_ids, status,
            BLOCK,
        )  # fmt: skip
    return token_ids, status
