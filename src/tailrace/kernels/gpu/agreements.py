"""Lengths of agreement with the end of a text: how many tokens before and at a place equal the text's last tokens.

Counterpart of `history.Suffixes`, for texts whose tokens are on the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256  # places of a text that one program compares


@triton.jit(do_not_specialize=["stride"])
def compare_places(tokens, stride, lengths, most, found, BLOCK: tl.constexpr):
    """Write the lengths of a block of places. A program ends once none of its places agrees any more."""
    text, last = tl.program_id(0).to(tl.int64), tl.load(lengths + tl.program_id(0)).to(tl.int32) - 1
    limit = tl.minimum(tl.load(most + tl.program_id(0)).to(tl.int32), last)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    agrees, count = place < last, tl.zeros((BLOCK,), tl.int32)
    back, going = tl.full((), 0, tl.int32), (limit > 0).to(tl.int32)
    while going == 1:
        wanted = tl.load(tokens + text * stride + last - back)
        agrees = agrees & (place >= back)
        token = tl.load(tokens + text * stride + place - back, mask=agrees, other=-1)
        agrees = agrees & (token == wanted)
        count += agrees.to(tl.int32)
        back += 1
        going = ((back < limit) & (tl.max(agrees.to(tl.int32), 0) == 1)).to(tl.int32)
    tl.store(found + text * stride + place, count, mask=place < stride)


def find_agreements(tokens: torch.Tensor, lengths: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Return int32 [R, L]: each place's length of agreement, at most `most`. It is 0 at the last place and beyond.

    Args:
        tokens: int64 [R, L], contiguous, not negative. lengths: int64 [R], the numbers of tokens. most: int64 [R].
    """
    found = torch.empty(tokens.shape, dtype=torch.int32, device=tokens.device)
    grid = (tokens.shape[0], triton.cdiv(tokens.shape[1], BLOCK))
    if found.numel():
        with torch.cuda.device_of(tokens):
            compare_places[grid](tokens, tokens.shape[1], lengths, most, found, BLOCK)
    return found
