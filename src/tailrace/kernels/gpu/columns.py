"""The numbers of a step's rows on the device: columns of one buffer, so that one copy brings all of them and one
address finds them."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.rows import RULES

# int64 columns, `padded` entries each: as kernels/rows.py has them, and
SLOT = tl.constexpr(0)
SOURCE = tl.constexpr(1)
POSITION = tl.constexpr(2)
DRAFT = tl.constexpr(3)
RULE = tl.constexpr(4)  # exact where no draft is to be settled; block only where proposals are there; or PROPOSED
FORCED = tl.constexpr(5)  # the row's token, or −1
BEFORE = tl.constexpr(6)  # how many drafts of its request come before it
MASK = tl.constexpr(7)  # its place in masks, or −1
PROPOSAL = tl.constexpr(8)  # where q lies that its draft was drawn from, or goes to; 0: nowhere
NOISE_POSITION = tl.constexpr(9)  # position and stream of the noise that a draft is drawn with (propose.py)
NOISE_STREAM = tl.constexpr(10)
COLUMNS = 11
START = tl.constexpr(11)  # behind the columns: int64 [N + 1]

PROPOSED = tl.constexpr(len(RULES))  # as a row's rule: a draft is to be drawn


@triton.jit
def column(step, which: tl.constexpr, row):
    """One number of a row."""
    return tl.load(step.numbers + which * step.padded + row)


@triton.jit
def proposal_of(step, row):
    """Where the row's q lies: float32 [V], anywhere on the device."""
    return column(step, PROPOSAL, row).to(tl.pointer_type(tl.float32))
