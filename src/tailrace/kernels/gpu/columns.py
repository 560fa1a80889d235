"""The numbers of a step's rows on the device, as columns of one buffer. One copy transfers all of them, and one address
finds them."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.rows import RULES

# int64 columns of `padded` entries each. Columns of kernels/rows.py have their meaning there.
SLOT = tl.constexpr(0)
SOURCE = tl.constexpr(1)
POSITION = tl.constexpr(2)
DRAFT = tl.constexpr(3)
RULE = tl.constexpr(4)  # PROPOSED; else "exact" without a draft, and "block" only with proposals.
FORCED = tl.constexpr(5)  # The row's forced token, or −1.
BEFORE = tl.constexpr(6)  # Number of drafts of the request before this row.
MASK = tl.constexpr(7)  # The row's place in masks, or −1.
PROPOSAL = tl.constexpr(8)  # Address of the draft's q, which is read or written; or 0.
NOISE_POSITION = tl.constexpr(9)  # Position and stream of the noise that draws a draft (propose.py).
NOISE_STREAM = tl.constexpr(10)
COLUMNS = 11
START = tl.constexpr(11)  # after the columns: int64 [N + 1]

PROPOSED = tl.constexpr(len(RULES))  # a rule of rows that draw a draft


@triton.jit
def column(step, which: tl.constexpr, row):
    """Return one number of a row."""
    return tl.load(step.numbers + which * step.padded + row)


@triton.jit
def proposal_of(step, row):
    """Return the address of the row's q: float32 [V], anywhere on the device."""
    return column(step, PROPOSAL, row).to(tl.pointer_type(tl.float32))
